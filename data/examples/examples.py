"""Training examples: token ids, the loss mask, and the place in the data that each example is from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from itertools import pairwise
from typing import TypeAlias, TypeVar

import numpy as np

from ...chunking import Flags, Ids, Ints, SlicedText, Text
from ...settings.definitions import TrainingSettings
from ..dataset_index import parse_share
from ..readers import LoadedText

# Rows whose learned positions are held at a time; cumulative sums over all ids would be larger than the data.
ROWS_AT_ONCE = 10_000
# The label of a token that is read and not learned; what PyTorch's cross entropy ignores by default.
IGNORE_INDEX = -100
KIND_WORDS = {"block": "block", "overlap": "overlap block", "dementor": "DEMENTOR window"}


@dataclass(frozen=True)
class TextSource:
    """The blocks of one text; every token is learned.

    `open_end`: the text goes on in the other part of the split, so its last section gets no EOS here.
    `part` and `start`: which part of a large file this is, and where it begins there.
    """

    name: str
    sliced: SlicedText
    open_end: bool = False
    part: int = 0
    start: int = 0

    def __len__(self) -> int:
        return len(self.sliced)

    @cached_property
    def lengths(self) -> Ints:
        lengths: Ints = self.sliced.lengths
        units = self.sliced.units
        if self.open_end and self.sliced.rules.closing and len(units) and units.ends_section[-1]:
            # Slicing closes every text with an EOS, which this one does not have here. Blocks that end where it
            # ends are one id shorter; where the last block was dropped, there is none of them.
            lengths = lengths - (self.sliced.ends == units.end[-1])
        return lengths

    @property
    def learned(self) -> Ints:
        """The number of learned ids of each example; the first id is never learned."""
        return self.lengths - 1

    @property
    def sections(self) -> Sequence[int]:
        """The section of each example; of rows, the row."""
        return [block.section for block in self.sliced]

    @property
    def successors(self) -> Ints:
        """For each example the number of the one that begins where it ends; -1 where there is none."""
        starts, ends, sections = self.sliced.starts, self.sliced.ends, np.asarray(self.sections)
        positions: Ints = np.searchsorted(starts, ends)
        candidates = np.minimum(positions, max(len(self) - 1, 0))
        continues = (starts[candidates] == ends) & (sections[candidates] == sections)
        return np.where(continues, candidates, -1)

    def ids(self, number: int) -> Ids:
        ids = self.sliced.ids_of(self.sliced[number])
        return ids[: int(self.lengths[number])] if self.open_end else ids

    def loss_mask(self, number: int) -> Flags | None:
        """The loss mask of an example; None where all ids are learned."""
        return None

    def text(self, number: int) -> str:
        return self.sliced.text_of(self.sliced[number])

    def place(self, number: int) -> str:
        """The example's position in the file, as users read it: 'row 12'."""
        block = self.sliced[number]
        return f"{KIND_WORDS[block.kind]} at characters {self.start + block.start} to {self.start + block.end}"


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of one file, with their ids in one array."""

    name: str
    all_ids: Ids
    all_trained: Flags
    first: Ints  # the first id of each row, then the number of all ids
    rows: Ints  # the position of each row in its file
    follows: Flags  # whether the row before it here is also the one before it in the file
    unit: str  # what a position counts: 'line' or 'row'
    decode: Callable[[Sequence[int]], str] = field(repr=False)
    has_conversations: bool = False  # whether `follows` is true only within conversations that the rows name

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Ints:
        lengths: Ints = self.first[1:] - self.first[:-1]
        return lengths

    @cached_property
    def learned(self) -> Ints:
        totals: Ints = np.zeros(len(self), np.int64)
        # The first id of a row is never learned: nothing comes before it to predict it from.
        for start, bounds, positions in self._learned_positions():
            second = np.minimum(bounds[:-1] + 1, bounds[1:])
            counts: Ints = np.searchsorted(positions, bounds[1:]) - np.searchsorted(positions, second)
            totals[start : start + len(counts)] = counts
        return totals

    @cached_property
    def last_learned_ids(self) -> Ints:
        """The last learned id of each row, without the spaces that many templates put after it; -1 for none."""
        last_ids: Ints = np.full(len(self), -1, np.int64)
        for start, bounds, positions in self._learned_positions():
            last: Ints = np.searchsorted(positions, bounds[1:]) - 1
            rows: Ints = np.arange(len(last))
            while len(rows):
                rows = rows[last[rows] >= 0]
                rows = rows[positions[last[rows]] >= bounds[:-1][rows]]
                ids = self.all_ids[positions[last[rows]]]
                last_ids[start + rows] = ids
                # One position back in the rows that end with a space; each distinct id is decoded once.
                distinct, places = np.unique(ids, return_inverse=True)
                spaces: Flags = np.array([not self.decode([token]).strip() for token in distinct.tolist()], bool)
                rows = rows[spaces[places]]
                last[rows] -= 1
        return last_ids

    def _learned_positions(self) -> Iterator[tuple[int, Ints, Ints]]:
        """For some rows at a time: the first row, the bounds of the rows, and the learned positions in them."""
        for start in range(0, len(self), ROWS_AT_ONCE):
            bounds = self.first[start : start + ROWS_AT_ONCE + 1]
            yield start, bounds, np.flatnonzero(self.all_trained[bounds[0] : bounds[-1]]) + bounds[0]

    @property
    def sections(self) -> Sequence[int]:
        rows: list[int] = self.rows.tolist()
        return rows

    @property
    def successors(self) -> Ints:
        """The next row of the file, blank lines ignored, or the next piece of the same row.

        -1 where a row between the two was dropped.
        """
        continues = np.append(self.follows[1:], [False])[: len(self)]
        return np.where(continues, np.arange(1, len(self) + 1), -1)

    def ids(self, number: int) -> Ids:
        return self.all_ids[self.first[number] : self.first[number + 1]]

    def loss_mask(self, number: int) -> Flags | None:
        return self.all_trained[self.first[number] : self.first[number + 1]]

    def text(self, number: int) -> str:
        return self.decode(self.ids(number).tolist())

    def place(self, number: int) -> str:
        return f"{self.unit} {self.rows[number]}"


# The examples of one file, indexed by number.
Source: TypeAlias = TextSource | RowSource


@dataclass(frozen=True, eq=False)
class Example:
    """The ids of one example, its loss mask, and the source that it is from."""

    ids: Ids
    loss_mask: Flags | None
    source: Source
    number: int

    @property
    def labels(self) -> Ids:
        """The labels, not shifted; the first id is ignored, since nothing comes before it to predict it from."""
        labels = (
            self.ids.copy()
            if self.loss_mask is None
            else np.where(self.loss_mask, self.ids, np.int32(IGNORE_INDEX))
        )
        labels[:1] = IGNORE_INDEX
        return labels

    @property
    def text(self) -> str:
        return self.source.text(self.number)

    @property
    def place(self) -> str:
        return self.source.place(self.number)


class Examples:
    """All examples of a run in the order of the files; the ids of an example are sliced out on access.

    `picks` are the numbers to take of each source, in that order; None takes every example once.
    """

    def __init__(self, sources: Sequence[Source], picks: Sequence[Ints | None] | None = None) -> None:
        self._sources = sources
        self._picks = [
            np.arange(len(source)) if pick is None else pick
            for source, pick in zip(sources, picks or [None] * len(sources), strict=True)
        ]
        self._ends = np.cumsum([len(pick) for pick in self._picks], dtype=np.int64)

    @staticmethod
    def join(parts: Iterable[Examples]) -> Examples:
        """The examples of several datasets, one after the other."""
        listed = list(parts)
        sources = [source for examples in listed for source in examples._sources]
        return Examples(sources, [pick for examples in listed for pick in examples._picks])

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> Example:
        if not 0 <= number < len(self):
            raise IndexError(number)
        index = int(np.searchsorted(self._ends, number, side="right"))
        first = int(self._ends[index - 1]) if index else 0
        return _example(self._sources[index], int(self._picks[index][number - first]))

    def __iter__(self) -> Iterator[Example]:
        return (
            _example(source, number)
            for source, pick in zip(self._sources, self._picks, strict=True)
            for number in pick.tolist()
        )

    @property
    def sources(self) -> Sequence[Source]:
        return self._sources

    def texts(self) -> list[Text]:
        """Return the texts that blocks were made of."""
        return [source.sliced.text for source in self._sources if isinstance(source, TextSource)]

    def lengths(self) -> list[int]:
        """Return the number of tokens of each example."""
        lengths: list[int] = self._concatenate("lengths").tolist()
        return lengths

    def learned(self) -> list[int]:
        """Return the number of learned tokens of each example."""
        counts: list[int] = self._concatenate("learned").tolist()
        return counts

    def source_numbers(self) -> list[int]:
        """Return for each example the number of its source in `sources`."""
        return [index for index, pick in enumerate(self._picks) for _ in range(len(pick))]

    def longest(self) -> int:
        """Return the number of tokens of the longest example."""
        return max(self.lengths(), default=0)

    def successors(self) -> list[int]:
        """Return for each example the number of the one that begins where it ends; -1 where the run has none."""
        result: list[int] = []
        for source, pick in zip(self._sources, self._picks, strict=True):
            following, numbers = source.successors.tolist(), pick.tolist()
            own, position = [-1] * len(numbers), {-1: -1}
            # From the end, so that of an example that a share of 200 % repeats, the nearest one after it is found.
            for n in reversed(range(len(numbers))):
                own[n] = position.get(following[numbers[n]], -1)
                position[numbers[n]] = len(result) + n
            result += own
        return result

    def digest(self) -> str:
        """Hash all ids in their order and the loss masks: equal for the same data, cut the same way."""
        digest = hashlib.sha256()
        for example in self:
            digest.update(example.ids.tobytes() + b"|")
            if example.loss_mask is not None:
                digest.update(example.loss_mask.tobytes() + b"|")
        return digest.hexdigest()

    def _concatenate(self, column: str) -> Ints:
        arrays = [
            getattr(source, column)[pick]
            for source, pick in zip(self._sources, self._picks, strict=True)
            if len(pick)
        ]
        return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def _example(source: Source, number: int) -> Example:
    return Example(source.ids(number), source.loss_mask(number), source, number)


@dataclass(frozen=True)
class ExampleDatasets:
    """The names of the datasets, and the dataset of each source by the source's id()."""

    names: tuple[str, ...]
    of_source: dict[int, int]

    def of(self, examples: Sequence[Example]) -> list[int]:
        """Return the number of each example's dataset."""
        return [self.of_source[id(example.source)] for example in examples]

    @property
    def has_several(self) -> bool:
        return len(self.names) > 1


def find_example_datasets(examples: Examples, settings: TrainingSettings) -> ExampleDatasets:
    """Group the sources by the datasets that the user named: a folder is one, however many files it has."""
    requested = [parse_share(name).name.rstrip("/\\") for name in (*settings.what.data, *settings.aside.eval_data)]
    names = []
    for source in examples.sources:
        folders = [folder for folder in requested if source.name.startswith(folder + "/")]
        names.append(max(folders, key=len) + "/" if folders else source.name)
    datasets = tuple(dict.fromkeys(names))
    numbers = {id(source): datasets.index(name) for source, name in zip(examples.sources, names, strict=True)}
    return ExampleDatasets(datasets, numbers)


Part = TypeVar("Part", LoadedText, TextSource)


def group_parts(items: Iterable[Part]) -> list[list[Part]]:
    """The parts of each large file together, and everything else by itself."""
    groups: list[list[Part]] = []
    for item in items:
        if item.part and groups and groups[-1][-1].part and groups[-1][-1].name == item.name:
            groups[-1].append(item)
        else:
            groups.append([item])
    return groups


@dataclass(frozen=True)
class TruncatedRows:
    """The rows after truncation, and how many were too long or dropped."""

    source: RowSource
    too_long: int  # rows longer than the cutoff
    nothing_learned: int  # examples dropped because no token of them would be learned


def truncate_rows(source: RowSource, cutoff: int, too_long: str, bos: int | None) -> TruncatedRows:
    """Drop, cut or split rows of more than `cutoff` ids; `too_long` is the value of that setting."""
    is_long: Flags = source.lengths > cutoff
    if not is_long.any():
        shortened = source
    elif too_long in ("drop", "drop_any"):
        shortened = select_rows(source, np.flatnonzero(~is_long))
    else:
        shortened = _cut_rows(source, cutoff, too_long, bos)
    # After the cut, because a reply may lie behind it.
    learned = shortened.learned > 0
    kept = shortened if learned.all() else select_rows(shortened, np.flatnonzero(learned))
    return TruncatedRows(kept, int(is_long.sum()), len(shortened) - len(kept))


def _cut_rows(source: RowSource, cutoff: int, too_long: str, bos: int | None) -> RowSource:
    """Cut long rows at one end or into pieces; a piece from inside a row that begins with BOS gets one, too."""
    bos_id: Ids = np.array([bos or 0], np.int32)
    not_learned: Flags = np.zeros(1, bool)
    ids: list[Ids] = []
    flags: list[Flags] = []
    lengths, rows = [0], []
    for row, (first, last) in enumerate(pairwise(source.first.tolist())):
        has_bos = bos is not None and last > first and int(source.all_ids[first]) == bos
        room = cutoff - has_bos
        if last - first <= cutoff:
            pieces = [(first, last)]
        elif too_long == "cut_end":
            pieces = [(first, first + cutoff)]
        elif too_long == "cut_start":
            pieces = [(last - room, last)]
        else:
            starts = range(first + cutoff, last, room)
            pieces = [(first, first + cutoff), *((start, min(start + room, last)) for start in starts)]
        for start, end in pieces:
            if has_bos and start > first:
                ids.append(bos_id)
                flags.append(not_learned)
            ids.append(source.all_ids[start:end])
            flags.append(source.all_trained[start:end])
            lengths.append(end - start + (has_bos and start > first))
            rows.append(row)
    return replace(
        source,
        all_ids=np.concatenate(ids),
        all_trained=np.concatenate(flags),
        first=np.cumsum(lengths, dtype=np.int64),
        rows=source.rows[rows],
        # A second piece continues the first one; what its row continues, only its first piece does.
        follows=source.follows[rows] | (np.diff(rows, prepend=-1) == 0),
    )


def select_rows(source: RowSource, numbers: Ints) -> RowSource:
    """Return a source with only these rows, in the order of the file."""
    selected: Flags = np.zeros(len(source), bool)
    selected[numbers] = True
    lengths = source.lengths
    # One byte for each id; positions, as in reorder_rows, would take eight.
    selected_ids: Flags = np.repeat(selected, lengths)
    return replace(
        source,
        all_ids=source.all_ids[selected_ids],
        all_trained=source.all_trained[selected_ids],
        first=np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths[selected])]),
        rows=source.rows[selected],
        follows=source.follows[selected] & (np.diff(np.flatnonzero(selected), prepend=-1) == 1),
    )


def reorder_rows(source: RowSource, order: Ints, follows: Flags) -> RowSource:
    """Return the rows in another order; `follows` is of that order."""
    if np.array_equal(order, np.arange(len(source))):
        return replace(source, follows=follows)
    lengths = source.lengths[order]
    first: Ints = np.concatenate([np.zeros(1, np.int64), np.cumsum(lengths)])
    # The position of each id: by how far its row moved, from where it is now.
    ids = np.repeat(source.first[order] - first[:-1], lengths) + np.arange(first[-1])
    return replace(
        source,
        all_ids=source.all_ids[ids],
        all_trained=source.all_trained[ids],
        first=first,
        rows=source.rows[order],
        follows=follows,
    )
