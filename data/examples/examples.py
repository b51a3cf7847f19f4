"""Training examples: token ids, the loss mask, and the place in the data that each example is from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TypeAlias

import numpy as np

from ...chunking import Flags, Ids, Ints, SlicedText

ROWS_AT_ONCE = 10_000
IGNORE_INDEX = -100
"""The label of a token that is read and not learned."""
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
        lengths: Ints = self.sliced.lengths - self._surplus_eos if self.open_end else self.sliced.lengths
        return lengths

    @property
    def learned(self) -> Ints:
        """The number of learned ids of each example; the first id is never learned."""
        return self.lengths - 1

    @property
    def _surplus_eos(self) -> Ints:
        """1 for each block that ends with an EOS that the text does not have, otherwise 0.

        Where the last block was dropped, no block has that EOS.
        """
        units = self.sliced.units
        closed = self.sliced.rules.closing and len(units) and units.ends_section[-1]
        ends: Flags = self.sliced.ends == (units.end[-1] if closed else -1)
        return ends.astype(self.sliced.lengths.dtype)

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
                rows = rows[self._are_spaces(ids)]
                last[rows] -= 1
        return last_ids

    def _are_spaces(self, ids: Ids) -> Flags:
        distinct, places = np.unique(ids, return_inverse=True)
        spaces: Flags = np.array([not self.decode([token]).strip() for token in distinct.tolist()], bool)
        return spaces[places]

    def _learned_positions(self) -> Iterator[tuple[int, Ints, Ints]]:
        """For some rows at a time: the first row, the bounds of the rows, and the learned positions in them.

        Cumulative sums over all ids would be larger than the data.
        """
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


Source: TypeAlias = TextSource | RowSource
"""The examples of one file, indexed by number."""


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
            for n in reversed(range(len(numbers))):  # of repeated examples the nearest one after it
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
