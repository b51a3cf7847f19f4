"""Load datasets: rows read and encoded, texts read; from the store where they were prepared before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from pathlib import Path

from ..chunking import unescape_hard_cut
from ..core.errors import DataError
from ..core.host import Folders, ModelCard
from ..settings.definitions import TrainingSettings
from . import arrow_store, dataset_index, large_texts
from .arrow_store import Store, StoreEntry
from .dataset_index import DatasetEntry
from .readers import LoadedText, as_data_error, documents, reader_process, row_files, text_files, unsupported
from .rows import RowDataset, Tokenizer, row_dataset
from .text import Boilerplate, Cleaning, clean, describe_boilerplate, find_wrap_width, load_or_find, mark

ProgressFn = Callable[[str, float | None], None]


@dataclass(frozen=True)
class PrepareContext:
    """The settings, model card, tokenizer and folders that every step of preparing needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: ProgressFn
    store: Store = field(default_factory=Store)
    check_stop: Callable[[], None] = lambda: None  # raises once the user stopped the work


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
    files = dataset_index.dataset_files(dataset.path)
    rows = tuple(_load_rows(context, dataset, file) for file in files if row_files.is_row_file(file))
    has_texts = dataset.path.is_dir() and any(f.suffix.lower() in dataset_index.TEXT_SUFFIXES for f in files)
    if rows and not has_texts:
        return LoadedDataset(dataset, rows=rows)
    hard_cut = unescape_hard_cut(context.settings.text.hard_cut)
    cleaning = Cleaning.of(context.settings.text)
    divide = partial(_load_parts, context, hard_cut)
    texts = read_texts(dataset.path, hard_cut, context.store, cleaning=cleaning, divide=divide)
    return LoadedDataset(dataset, tuple(texts), rows)


def _load_parts(context: PrepareContext, hard_cut: str, file: Path, name: str) -> list[LoadedText]:
    """The parts of a large text; nothing of it is kept if the tokenizer can't be told from others."""
    unsupported.refuse_unsupported(file, name)
    kept = context.store if context.tokenizer.fingerprint else Store()
    store = large_texts.store_for(file, kept, context.folders.prepared_data)
    cleaning = Cleaning.of(context.settings.text)
    return large_texts.load_parts(file, name, hard_cut, store, cleaning, check_stop=context.check_stop)


def _load_rows(context: PrepareContext, dataset: DatasetEntry, file: Path) -> RowDataset:
    name = dataset.name + file.relative_to(dataset.path).as_posix() if dataset.path.is_dir() else dataset.name
    with as_data_error(name):
        rows, stored = row_dataset.load_or_restore(
            (file, name, context.settings, context.folders, context.tokenizer),
            lambda rows: context.say(f"Reading {name}: {rows:,} rows", 0.0),
            context.store,
        )
    if stored:
        context.say(f"Using the cached version of {name}", None)
    return rows


def read_texts(
    path: Path,
    hard_cut: str = "\n\n\n",
    store: Store | None = None,
    *,
    cleaning: Cleaning = Cleaning(),  # noqa: B008  # frozen
    divide: Callable[[Path, str], list[LoadedText]] | None = None,
) -> list[LoadedText]:
    """The text of a file, or of all texts in a folder; a DataError lists everything that cannot be read.

    `hard_cut` is put between the chapters of documents that have some; `divide` reads a large text file in parts.
    """
    store = store or Store()
    texts, problems = list[LoadedText](), []
    with reader_process():
        for file in _text_files(path):
            name = file.relative_to(path).as_posix() if file != path else path.name
            try:
                with as_data_error(name):
                    texts += (
                        divide(file, name)
                        if divide and _is_large(file)
                        else [_read_text(file, name, hard_cut, store)]
                    )
            except DataError as error:
                problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    found = iter(load_or_find([(str(text.text), text.menus) for text in texts if not text.part], store))
    return _drop_empty([text if text.part else _clean_text(text, next(found), cleaning) for text in texts])


def _is_large(file: Path) -> bool:
    is_text = file.suffix.lower() not in documents.READERS
    return is_text and large_texts.is_large(file)


def _drop_empty(texts: Sequence[LoadedText]) -> list[LoadedText]:
    """The texts with anything left; a page that is only a menu must not refuse a folder of pages."""
    kept = [text for text in texts if not _is_blank(text)]
    words = [f"{text.name}: everything in it looks like boilerplate." for text in texts if _is_blank(text)]
    if not kept:
        raise DataError("\n".join(f"{reason} Turn off 'Drop boilerplate'." for reason in words))
    return [replace(kept[0], notes=(*kept[0].notes, *words)), *kept[1:]]


def _is_blank(text: LoadedText) -> bool:
    return not text.part and not str(text.text).strip()


def _clean_text(text: LoadedText, found: list[Boilerplate], cleaning: Cleaning) -> LoadedText:
    content = str(text.text)
    width = find_wrap_width(content)
    cleaned = replace(text, text=clean(content, found, width, cleaning))
    return mark(cleaned, describe_boilerplate(found), width, cleaning)


def _text_files(path: Path) -> list[Path]:
    files = dataset_index.dataset_files(path, dataset_index.TEXT_SUFFIXES)
    if not files:
        raise DataError(
            f"{path.name}: this folder has no text files ({', '.join(dataset_index.TEXT_SUFFIXES)}). "
            f"Add your text files to it. {unsupported.describe_unsupported(path)}".rstrip()
        )
    return files


def _read_text(file: Path, name: str, hard_cut: str, store: Store) -> LoadedText:
    unsupported.refuse_unsupported(file, name)
    if file.suffix.lower() in documents.READERS:
        return _load_document(file, name, hard_cut, store)
    text, notes = text_files.read_text(file, name)
    if not text or text.isspace():
        raise DataError(f"{name} is empty. Add text to it, or remove it from the dataset.")
    return LoadedText(name, text, notes)


def _load_document(path: Path, name: str, hard_cut: str, store: Store) -> LoadedText:
    """A document's text, stored or read now."""
    content = text_files.file_digest(path, name)
    key = arrow_store.cache_key("document", content, path.suffix.lower(), name, hard_cut)
    if entry := store.load(key):
        menus = tuple((start, end) for start, end in entry.metadata["menus"])
        return LoadedText(name, entry.metadata["text"], tuple(entry.metadata["notes"]), menus=menus)
    text = documents.read_document(path, name, hard_cut)
    store.save(key, StoreEntry({}, {"text": text.text, "notes": text.notes, "menus": text.menus}))
    return text
