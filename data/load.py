"""Load datasets: rows read and encoded, texts read; from the store where they were prepared before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from ..chunking import Encoder, unescape_hard_cut
from ..core.errors import DataError
from ..core.host import DeviceMemory, Folders, ModelCard
from ..settings.definitions import TrainingSettings
from . import dataset_index, example_cache
from .arrow_store import Store
from .dataset_index import DatasetEntry
from .examples import truncation
from .readers import LoadedText, documents, text_files, unsupported
from .rows import RowDataset, RowTokenizer, row_dataset

AUTO_CUTOFF = 256
ProgressFn = Callable[[str, float | None], None]


class Tokenizer(RowTokenizer, Protocol):
    """The tokenizer interface that preparing data needs."""

    @property
    def encode(self) -> Encoder: ...


@dataclass(frozen=True)
class PrepareContext:
    """The settings, model card, tokenizer and folders that every step of preparing needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: ProgressFn
    machine: DeviceMemory | None = None
    store: Store = field(default_factory=Store)


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
    rows = tuple(
        _load_rows(context, dataset, file)
        for file in dataset_index.dataset_files(dataset.path)
        if row_dataset.is_row_file(file)
    )
    suffixes = (
        {file.suffix.lower() for file in dataset_index.dataset_files(dataset.path)}
        if dataset.path.is_dir()
        else set()
    )
    texts = not rows or suffixes & set(dataset_index.TEXT_SUFFIXES)
    hard_cut = unescape_hard_cut(context.settings.text.hard_cut)
    read_document = partial(example_cache.cached_document, context.store)
    return LoadedDataset(dataset, tuple(read_texts(dataset.path, hard_cut, read_document)) if texts else (), rows)


def _load_rows(context: PrepareContext, dataset: DatasetEntry, file: Path) -> RowDataset:
    name = dataset.name + file.relative_to(dataset.path).as_posix() if dataset.path.is_dir() else dataset.name

    def say(rows: int) -> None:
        context.say(f"Reading {name}: {rows:,} rows", 0.0)

    arguments = (file, name, context.settings, context.folders, context.tokenizer)
    row_set, cached = example_cache.cached_rows(
        row_dataset.cache_key(*arguments),
        context.store,
        context.tokenizer,
        lambda: row_dataset.load_row_dataset(*arguments, say),
    )
    if cached:
        context.say(f"{name} was prepared before: nothing is done again", None)
    return row_set


def resolve_cutoff(context: PrepareContext, loaded: Sequence[LoadedDataset]) -> int:
    """The cutoff for these datasets: the setting, or for rows by the longest of them."""
    cutoff = context.settings.text.cutoff
    if cutoff != "auto":
        return int(cutoff)
    longest = max((int(r.source.lengths.max(initial=0)) for o in loaded for r in o.rows), default=0)
    if not longest:
        return AUTO_CUTOFF
    by_rows = truncation.auto_cutoff(longest, context.card.context)
    return max(by_rows, AUTO_CUTOFF) if any(o.texts for o in loaded) else by_rows


DocumentReader = Callable[[Path, str, str], LoadedText]  # file, name, hard cut


def read_texts(path: Path, hard_cut: str = "\n\n\n", document: DocumentReader | None = None) -> list[LoadedText]:
    """The text of a file, or of all texts in a folder; a DataError lists everything that cannot be read.

    `hard_cut` is put between the chapters of documents that have some; `document` replaces the usual reader.
    """
    texts, problems = [], []
    for file in _files(path):
        try:
            name = file.relative_to(path).as_posix() if file != path else path.name
            texts.append(_read_text(file, name, hard_cut, document))
        except DataError as error:
            problems.append(str(error))
    if problems:
        raise DataError("\n".join(problems))
    return texts


def _files(path: Path) -> list[Path]:
    files = dataset_index.dataset_files(path, dataset_index.TEXT_SUFFIXES)
    if not files:
        raise DataError(
            f"{path.name}: the folder holds no text ({', '.join(dataset_index.TEXT_SUFFIXES)}). Put the texts to "
            f"learn from into it. {unsupported.describe_unsupported(path)}".rstrip()
        )
    return files


def _read_text(file: Path, name: str, hard_cut: str, document: DocumentReader | None) -> LoadedText:
    unsupported.refuse_unsupported(file, name)
    if file.suffix.lower() in documents.READERS:
        return (document or documents.read_document)(file, name, hard_cut)
    text, notes = text_files.read_text(file, name)
    if not text or text.isspace():
        raise DataError(f"{name} is empty. Put text into it, or take it out of the data.")
    return LoadedText(name, text, notes)
