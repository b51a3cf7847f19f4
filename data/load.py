"""Load datasets, from the store where they were prepared before, and work out the slicing rules for them."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Literal, cast

from ..chunking import BlockEnds, SlicingRules, unescape_hard_cut
from ..core.errors import DataError
from ..core.findings import Finding, Suggestion, advice, note, problem
from ..core.host import ModelCard
from ..settings.definitions import TextSettings, TrainingSettings
from . import arrow_store, dataset_index, large_texts
from .arrow_store import Store, StoreEntry
from .dataset_index import DatasetEntry
from .readers import LoadedText, as_data_error, documents, reader_process, row_files, text_files, unsupported
from .rows import PrepareContext as PrepareContext  # for the engine
from .rows import RowDataset, Tokenizer, refuse_without_preferences, row_dataset
from .text import clean, describe_boilerplate, find_wrap_width, load_or_find, mark

AUTO_CUTOFF = 256  # of raw text
CUTOFF_STEP, MAX_AUTO_CUTOFF = 32, 2048
ProgressFn = Callable[[str, float | None], None]


@dataclass(frozen=True)
class LoadedDataset:
    """A dataset in memory: texts that are not sliced yet, and rows that are encoded."""

    data: DatasetEntry
    texts: tuple[LoadedText, ...] = ()
    rows: tuple[RowDataset, ...] = ()


def load_datasets(context: PrepareContext, names: Sequence[str]) -> list[LoadedDataset]:
    """Load every dataset; a DataError lists everything that could not be read."""
    datasets = dataset_index.find_datasets(names, context.folders)
    loaded, problems = [], []
    for number, dataset in enumerate(datasets):
        context.say(f"Reading {dataset.name}", number / len(datasets))
        try:
            loaded.append(load_dataset(context, dataset))
        except DataError as error:
            problems += str(error).splitlines()
    if problems:
        raise DataError("\n".join(problems))
    return loaded


def load_dataset(context: PrepareContext, dataset: DatasetEntry) -> LoadedDataset:
    """Load a file or a folder, as texts or as rows."""
    if dataset.path.is_relative_to(context.folders.chats):
        with as_data_error(dataset.name):
            return LoadedDataset(dataset, rows=(row_dataset.load_or_restore(context, dataset.path, dataset.name),))
    files = dataset_index.dataset_files(dataset.path)
    is_folder = dataset.path.is_dir()
    rows = []
    for file in filter(row_files.is_row_file, files):
        name = dataset.name + file.relative_to(dataset.path).as_posix() if is_folder else dataset.name
        with as_data_error(name):
            rows.append(row_dataset.load_or_restore(context, file, name))
    has_texts = is_folder and len(rows) < len(files)
    # A single file is rows or a text; a folder can have both.
    if rows and not has_texts:
        return LoadedDataset(dataset, rows=tuple(rows))
    if context.settings.preferences.compares:  # a text has none
        refuse_without_preferences(dataset.name, None, context.settings.preferences.objective)
    settings = context.settings.text
    texts = read_texts(dataset.path, unescape_hard_cut(settings.hard_cut), settings=settings, context=context)
    return LoadedDataset(dataset, tuple(texts), tuple(rows))


def read_texts(
    path: Path,
    hard_cut: str = "\n\n\n",
    *,
    settings: TextSettings = TextSettings(),  # noqa: B008  # frozen
    context: PrepareContext | None = None,
) -> list[LoadedText]:
    """The text of a file, or of all texts in a folder; a DataError lists everything that cannot be read.

    `hard_cut` is put between the chapters of documents that have some; with a context, large texts come in parts.
    """
    store = context.store if context else Store()
    files = dataset_index.dataset_files(path, dataset_index.TEXT_SUFFIXES)
    files = [file for file in files if not row_files.is_row_file(file)]
    if not files and path.is_file():
        raise DataError(f"{path.name} has rows, which become examples without slicing. Check shows them.")
    if not files:
        raise DataError(
            f"{path.name}: this folder has no text files ({', '.join(dataset_index.TEXT_SUFFIXES)}). "
            f"Add your text files to it. {unsupported.describe_unsupported(path)}".rstrip()
        )
    texts, problems = list[LoadedText](), []
    with reader_process():
        for file in files:
            name = file.relative_to(path).as_posix() if file != path else path.name
            try:
                with as_data_error(name):
                    unsupported.refuse_unsupported(file, name)
                    if context and file.suffix.lower() not in documents.READERS and large_texts.is_large(file):
                        texts += large_texts.load_parts(file, name, hard_cut, context)
                    else:
                        texts.append(_read_file(file, name, hard_cut, store))
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    # Boilerplate is looked for in all texts together; each part of a large text was cleaned when it was read.
    found = iter(load_or_find([(str(text.text), text.menus) for text in texts if not text.part], store))
    kept_texts, words = list[LoadedText](), []
    for text in texts:
        if not text.part:
            boilerplate, content = next(found), str(text.text)
            width = find_wrap_width(content)
            text = replace(text, text=clean(content, boilerplate, width, settings))
            text = mark(text, describe_boilerplate(boilerplate), width, settings)
            # A page that is only a menu must not refuse a folder of pages.
            if not str(text.text).strip():
                words.append(f"{text.name}: everything in it looks like boilerplate.")
                continue
        kept_texts.append(text)
    if not kept_texts:
        raise DataError("\n".join(f"{reason} Turn off 'Drop boilerplate'." for reason in words))
    return [replace(kept_texts[0], notes=(*kept_texts[0].notes, *words)), *kept_texts[1:]]


def _read_file(file: Path, name: str, hard_cut: str, store: Store) -> LoadedText:
    """The text of a file: of a document, stored or read now, or of a plain text."""
    kind = file.suffix.lower()
    if kind not in documents.READERS:
        text, notes = text_files.read_text(file, name)
        if not text or text.isspace():
            raise DataError(f"{name} is empty. Add text to it, or remove it from the dataset.")
        return LoadedText(name, text, notes)
    key = arrow_store.cache_key("document", text_files.file_digest(file, name), kind, name, hard_cut)
    if entry := store.load(key):
        menus = tuple((start, end) for start, end in entry.metadata["menus"])
        return LoadedText(name, entry.metadata["text"], tuple(entry.metadata["notes"]), menus=menus)
    document = documents.read_document(file, name, hard_cut)
    said = {"text": document.text, "notes": document.notes, "menus": document.menus}
    store.save(key, StoreEntry({}, said))
    return document


@dataclass(frozen=True)
class ResolvedSettings:
    """The values that a run uses for settings that may be "auto" or lowered."""

    cutoff: int
    accumulation: int
    gradient_checkpointing: str  # never auto
    alpha: float

    def as_json(self) -> dict[str, Any]:
        return dict(vars(self))


def longest_row(datasets: Sequence[LoadedDataset]) -> int:
    """The tokens of the longest row, before truncation; 0 where there are no rows."""
    lengths = [rows.source.longest_sides.max(initial=0) for dataset in datasets for rows in dataset.rows]
    return int(max(lengths, default=0))


def auto_cutoff(longest: int, context: int) -> int:
    """The length of the longest row, rounded up to a multiple of 32; at most 2048 and the model's context."""
    rounded = min(-(-max(longest, 1) // CUTOFF_STEP) * CUTOFF_STEP, MAX_AUTO_CUTOFF)
    return min(rounded, context) if context else rounded


def slicing_rules(
    text: TextSettings, card: ModelCard, tokenizer: Tokenizer, datasets: Sequence[LoadedDataset] = ()
) -> SlicingRules:
    """The rules for slicing raw text; a cutoff of "auto" is 256 for raw text, and else fits the longest row."""
    if text.cutoff != "auto":
        cutoff = int(text.cutoff)
    else:
        longest, cutoff = longest_row(datasets), min(AUTO_CUTOFF, card.context or AUTO_CUTOFF)
        if longest:
            has_texts = any(dataset.texts for dataset in datasets)
            cutoff = max(auto_cutoff(longest, card.context), cutoff if has_texts else 0)
    return SlicingRules(
        cutoff=cutoff,
        chunking=cast(Literal["blocks", "dementor"], text.chunking),
        overlap=text.overlap,
        dementor_repeats=text.dementor_repeats,
        hard_cut=unescape_hard_cut(text.hard_cut),
        min_chars=text.min_chars,
        bos=tokenizer.bos if text.add_bos else None,
        eos=tokenizer.eos,
        add_eos=cast(Literal["hard_cut", "every_block", "never"], text.add_eos),
        block_ends=cast(BlockEnds, text.block_ends),
    )


def check_rules(
    settings: TrainingSettings, card: ModelCard, rules: SlicingRules, longest: int
) -> Iterator[Finding | Suggestion]:
    """Yield what the model makes of the cutoff, the end token and the longest row, which has so many tokens."""
    if not card.is_causal_lm:
        architectures = ", ".join(card.config.get("architectures") or ["an encoder"])
        yield problem("", f"{card.name} ({architectures}) can't generate text. Choose one that can.")
    if card.context and rules.cutoff > card.context:
        yield problem(
            "cutoff",
            f"Maximum context length (Cutoff): {rules.cutoff} is more than {card.name} supports "
            f"({card.context} tokens). Use {card.context} or less.",
        )
    if rules.eos is None and rules.add_eos != "never":
        yield advice("add_eos", "This tokenizer has no EOS token, so the model will not learn where a text ends.")
    if settings.text.cutoff == "auto":
        yield note("cutoff", f"Maximum context length (Cutoff): with auto, the cutoff is {rules.cutoff} tokens.")
    why = f"Raw text is sliced into blocks of at most {rules.cutoff} tokens."
    if longest:
        why = f"The longest row has {longest} tokens, and the cutoff is {rules.cutoff}."
    fitting = auto_cutoff(longest, card.context)
    if min(longest, fitting) > rules.cutoff:
        yield Suggestion("cutoff", fitting, why)
    else:
        yield Suggestion("cutoff", settings.text.cutoff, why, keep=True)
