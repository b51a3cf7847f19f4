"""Data sets as they are read: rows encoded, texts still to be cut; out of what is kept, where it is there."""

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
    """What the data ask of a tokenizer."""

    @property
    def encode(self) -> Encoder: ...


@dataclass(frozen=True)
class Work:
    """What every step on the road needs."""

    settings: TrainingSettings
    folders: Folders
    card: ModelCard
    tokenizer: Tokenizer
    say: Say
    machine: Memory | None = None
    store: Store = field(default_factory=Store)


@dataclass(frozen=True)
class Opened:
    """A data set as it was read: texts that are still to be cut, and rows that are encoded already."""

    data: DataSet
    texts: tuple[ReadText, ...] = ()
    rows: tuple[RowSet, ...] = ()


def opened_sets(work: Work, names: Sequence[str]) -> list[Opened]:
    """Every data set, read; a DataError names everything that could not be."""
    sets = dataset_index.found(names, work.folders)
    opened, problems = [], []
    for number, data in enumerate(sets):
        work.say(f"Reading {data.name}", number / len(sets))
        try:
            opened.append(opened_set(work, data))
        except DataError as error:
            problems += str(error).splitlines()
    if problems:
        raise DataError("\n".join(problems))
    return opened


def opened_set(work: Work, data: DataSet) -> Opened:
    """A file or a folder, as texts or as rows."""
    rows = tuple(
        _open_rows(work, data, file) for file in dataset_index.files(data.path) if row_dataset.is_rows(file)
    )
    there = {file.suffix.lower() for file in dataset_index.files(data.path)} if data.path.is_dir() else set()
    texts = not rows or there & set(dataset_index.TEXTS)
    cut = unescaped(work.settings.text.hard_cut)
    documents = partial(example_cache.document, work.store)
    return Opened(data, tuple(all_texts.read(data.path, cut, documents)) if texts else (), rows)


def _open_rows(work: Work, data: DataSet, file: Path) -> RowSet:
    name = data.name + file.relative_to(data.path).as_posix() if data.path.is_dir() else data.name

    def say(rows: int) -> None:
        work.say(f"Reading {name}: {rows:,} rows", 0.0)

    given = (file, name, work.settings, work.folders, work.tokenizer)
    made, before = example_cache.rows(
        row_dataset.key(*given), work.store, work.tokenizer, lambda: row_dataset.row_set(*given, say)
    )
    if before:
        work.say(f"{name} was prepared before: nothing is done again", None)
    return made


def cutoff_of(work: Work, opened: Sequence[Opened]) -> int:
    """The cutoff that these data get: as asked, or for rows by the longest of them."""
    asked = work.settings.text.cutoff
    if asked != "auto":
        return int(asked)
    longest = max((int(r.source.lengths.max(initial=0)) for o in opened for r in o.rows), default=0)
    if not longest:
        return AUTO_CUTOFF
    by_rows = truncation.auto_cutoff(longest, work.card.context)
    return max(by_rows, AUTO_CUTOFF) if any(o.texts for o in opened) else by_rows
