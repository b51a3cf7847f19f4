"""Load datasets: rows read and encoded, texts read; from the store where they were prepared before."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Protocol

from ..chunking import Encoder, unescaped
from ..core.errors import DataError
from ..core.host import Folders, Memory, ModelCard
from ..settings.definitions import TrainingSettings
from . import dataset_index, example_cache
from . import texts as all_texts
from .arrow_store import Store
from .dataset_index import DataSet
from .examples import truncation
from .readers import ReadText
from .rows import RowSet, RowTokenizer, row_dataset

AUTO_CUTOFF = 256
Say = Callable[[str, float | None], None]


class Tokenizer(RowTokenizer, Protocol):
    """The tokenizer interface that preparing data needs."""

    @property
    def encode(self) -> Encoder: ...


@dataclass(frozen=True)
class Work:
    """The settings, model card, tokenizer and folders that every step of preparing needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: Say
    machine: Memory | None = None
    store: Store = field(default_factory=Store)


@dataclass(frozen=True)
class Opened:
    """A dataset in memory: texts that are not sliced yet, and rows that are encoded."""

    data: DataSet
    texts: tuple[ReadText, ...] = ()
    rows: tuple[RowSet, ...] = ()


def opened_sets(context: Work, names: Sequence[str]) -> list[Opened]:
    """Load every dataset; a DataError lists everything that could not be read."""
    datasets = dataset_index.found(names, context.folders)
    loaded, problems = [], []
    for number, dataset in enumerate(datasets):
        context.say(f"Reading {dataset.name}", number / len(datasets))
        try:
            loaded.append(opened_set(context, dataset))
        except DataError as error:
            problems += str(error).splitlines()
    if problems:
        raise DataError("\n".join(problems))
    return loaded


def opened_set(context: Work, dataset: DataSet) -> Opened:
    """Load a file or a folder, as texts or as rows."""
    rows = tuple(
        _load_rows(context, dataset, file)
        for file in dataset_index.files(dataset.path)
        if row_dataset.is_rows(file)
    )
    suffixes = (
        {file.suffix.lower() for file in dataset_index.files(dataset.path)} if dataset.path.is_dir() else set()
    )
    texts = not rows or suffixes & set(dataset_index.TEXTS)
    hard_cut = unescaped(context.settings.text.hard_cut)
    read_document = partial(example_cache.document, context.store)
    return Opened(dataset, tuple(all_texts.read(dataset.path, hard_cut, read_document)) if texts else (), rows)


def _load_rows(context: Work, dataset: DataSet, file: Path) -> RowSet:
    name = dataset.name + file.relative_to(dataset.path).as_posix() if dataset.path.is_dir() else dataset.name

    def say(rows: int) -> None:
        context.say(f"Reading {name}: {rows:,} rows", 0.0)

    arguments = (file, name, context.settings, context.folders, context.tokenizer)
    row_set, cached = example_cache.rows(
        row_dataset.key(*arguments), context.store, context.tokenizer, lambda: row_dataset.row_set(*arguments, say)
    )
    if cached:
        context.say(f"{name} was prepared before: nothing is done again", None)
    return row_set


def cutoff_of(context: Work, loaded: Sequence[Opened]) -> int:
    """The cutoff for these datasets: the setting, or for rows by the longest of them."""
    cutoff = context.settings.text.cutoff
    if cutoff != "auto":
        return int(cutoff)
    longest = max((int(r.source.lengths.max(initial=0)) for o in loaded for r in o.rows), default=0)
    if not longest:
        return AUTO_CUTOFF
    by_rows = truncation.auto_cutoff(longest, context.card.context)
    return max(by_rows, AUTO_CUTOFF) if any(o.texts for o in loaded) else by_rows
