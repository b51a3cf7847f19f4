"""What a model learns from: examples of ids and which of them are learned, with where each came from."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from ...chunking import Flags, Ids, Ints, Sliced

ROWS_AT_ONCE = 10_000
IGNORED = -100
"""The label of an id that is read and not learned."""


class Source(Protocol):
    """One data set's examples, by number."""

    @property
    def name(self) -> str: ...

    @property
    def lengths(self) -> Ints:
        """How many ids each example has."""
        ...

    @property
    def learned(self) -> Ints:
        """How many of them are learned; the first never is."""
        ...

    @property
    def sections(self) -> Sequence[int]:
        """Of each example the part that it is from: what lies between two hard cuts, or a row."""
        ...

    @property
    def neighbours(self) -> Ints:
        """Of each example the number of the one that begins where it ends; -1 where none does."""
        ...

    def __len__(self) -> int: ...

    def ids(self, number: int) -> Ids: ...

    def trained(self, number: int) -> Flags | None:
        """Which ids are learned; None where all are."""
        ...

    def text(self, number: int) -> str: ...

    def place(self, number: int) -> str:
        """Where the example stands, for a person: 'row 12'."""
        ...


@dataclass(frozen=True)
class TextSource:
    """One text as it was cut: every token is learned.

    `open_end`: what follows it is kept aside, so its last section does not end and gets no EOS there.
    """

    name: str
    sliced: Sliced
    open_end: bool = False

    def __len__(self) -> int:
        return len(self.sliced)

    @cached_property
    def lengths(self) -> Ints:
        lengths: Ints = self.sliced.lengths - self._unended if self.open_end else self.sliced.lengths
        return lengths

    @property
    def learned(self) -> Ints:
        return self.lengths - 1

    @property
    def _unended(self) -> Ints:
        """1 for each example whose EOS is not the text's; where the last block was left out, none has it."""
        units = self.sliced.units
        closed = self.sliced.rules.closing and len(units) and units.ends_section[-1]
        ends: Flags = self.sliced.ends == (units.end[-1] if closed else -1)
        return ends.astype(self.sliced.lengths.dtype)

    @property
    def sections(self) -> Sequence[int]:
        return [block.section for block in self.sliced]

    @property
    def neighbours(self) -> Ints:
        import numpy as np

        starts, ends, sections = self.sliced.starts, self.sliced.ends, np.asarray(self.sections)
        found: Ints = np.searchsorted(starts, ends)
        there = np.minimum(found, max(len(self) - 1, 0))
        goes_on = (starts[there] == ends) & (sections[there] == sections)
        return np.where(goes_on, there, -1)

    def ids(self, number: int) -> Ids:
        ids = self.sliced.ids_of(self.sliced[number])
        return ids[: int(self.lengths[number])] if self.open_end else ids

    def trained(self, number: int) -> Flags | None:
        return None

    def text(self, number: int) -> str:
        return self.sliced.text_of(self.sliced[number])

    def place(self, number: int) -> str:
        block = self.sliced[number]
        return f"{block.kind} at characters {block.start} to {block.end}"


@dataclass(frozen=True, eq=False)
class RowSource:
    """The rows of one data set, their ids one after the other."""

    name: str
    all_ids: Ids
    all_trained: Flags
    first: Ints  # of each row, and at the end the number of all ids
    rows: Ints  # the place of each in its file
    follows: Flags  # of each whether the one before it here is also the one before it in the file
    unit: str  # what a place counts: 'line' or 'row'
    decode: Callable[[Sequence[int]], str] = field(repr=False)

    def __len__(self) -> int:
        return len(self.rows)

    @property
    def lengths(self) -> Ints:
        lengths: Ints = self.first[1:] - self.first[:-1]
        return lengths

    @cached_property
    def learned(self) -> Ints:
        import numpy as np

        counted: Ints = np.zeros(len(self), np.int64)
        for start in range(0, len(self), ROWS_AT_ONCE):  # sums over all would be larger than the data
            bounds = self.first[start : start + ROWS_AT_ONCE + 1]
            places: Ints = np.flatnonzero(self.all_trained[bounds[0] : bounds[-1]]) + bounds[0]
            second = np.minimum(bounds[:-1] + 1, bounds[1:])
            counts: Ints = np.searchsorted(places, bounds[1:]) - np.searchsorted(places, second)
            counted[start : start + len(counts)] = counts
        return counted

    @cached_property
    def last_learned(self) -> Ints:
        """The last id of each row that is learned; -1 where none is."""
        import numpy as np

        found: Ints = np.full(len(self), -1, np.int64)
        for start in range(0, len(self), ROWS_AT_ONCE):
            bounds = self.first[start : start + ROWS_AT_ONCE + 1]
            places: Ints = np.flatnonzero(self.all_trained[bounds[0] : bounds[-1]]) + bounds[0]
            last: Ints = np.searchsorted(places, bounds[1:]) - 1
            some = np.flatnonzero(last >= 0)
            some = some[places[last[some]] >= bounds[:-1][some]]
            found[start + some] = self.all_ids[places[last[some]]]
        return found

    @property
    def sections(self) -> Sequence[int]:
        rows: list[int] = self.rows.tolist()
        return rows

    @property
    def neighbours(self) -> Ints:
        """The next row of the file, over blank lines too, or the next piece of this one; none where one is left
        out between them."""
        import numpy as np

        goes_on = np.append(self.follows[1:], [False])[: len(self)]
        return np.where(goes_on, np.arange(1, len(self) + 1), -1)

    def ids(self, number: int) -> Ids:
        return self.all_ids[self.first[number] : self.first[number + 1]]

    def trained(self, number: int) -> Flags | None:
        return self.all_trained[self.first[number] : self.first[number + 1]]

    def text(self, number: int) -> str:
        return self.decode(self.ids(number).tolist())

    def place(self, number: int) -> str:
        return f"{self.unit} {self.rows[number]}"


@dataclass(frozen=True, eq=False)
class Example:
    """The ids of one example, which of them are learned, and the source that it came from."""

    ids: Ids
    trained: Flags | None
    source: Source
    number: int

    @property
    def labels(self) -> Ids:
        """What is to be predicted, at its own place; the first has nothing before it to predict it from."""
        import numpy as np

        labels = self.ids.copy() if self.trained is None else np.where(self.trained, self.ids, np.int32(IGNORED))
        labels[:1] = IGNORED
        return labels

    @property
    def text(self) -> str:
        return self.source.text(self.number)

    @property
    def place(self) -> str:
        return self.source.place(self.number)


class Examples:
    """All examples of a run in the order of the files; ids are cut out when they are asked for.

    `picks` are the numbers to take of each source, in that order; None takes each one once.
    """

    def __init__(self, sources: Sequence[Source], picks: Sequence[Ints | None] | None = None) -> None:
        import numpy as np

        self._sources = sources
        self._picks = [
            np.arange(len(source)) if pick is None else pick
            for source, pick in zip(sources, picks or [None] * len(sources), strict=True)
        ]
        self._ends = np.cumsum([len(pick) for pick in self._picks], dtype=np.int64)

    def __len__(self) -> int:
        return int(self._ends[-1]) if len(self._ends) else 0

    def __getitem__(self, number: int) -> Example:
        import numpy as np

        if not 0 <= number < len(self):
            raise IndexError(number)
        which = int(np.searchsorted(self._ends, number, side="right"))
        first = int(self._ends[which - 1]) if which else 0
        return _example(self._sources[which], int(self._picks[which][number - first]))

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
        """The tokens of each example."""
        counted: list[int] = self._of_each("lengths").tolist()
        return counted

    def learned(self) -> list[int]:
        """How many tokens of each example are learned."""
        counted: list[int] = self._of_each("learned").tolist()
        return counted

    def source_of_each(self) -> list[int]:
        """For each example the number of its source in `sources`."""
        return [which for which, pick in enumerate(self._picks) for _ in range(len(pick))]

    def longest(self) -> int:
        """The tokens of the longest example."""
        return max(self.lengths(), default=0)

    def neighbours(self) -> list[int]:
        """Of each example the number of the one that begins where it ends; -1 where the run has none."""
        found: list[int] = []
        for source, pick in zip(self._sources, self._picks, strict=True):
            after, numbers = source.neighbours.tolist(), pick.tolist()
            own, place = [-1] * len(numbers), {-1: -1}
            for n in reversed(range(len(numbers))):  # of those that come several times, the nearest behind it
                own[n] = place.get(after[numbers[n]], -1)
                place[numbers[n]] = len(found) + n
            found += own
        return found

    def digest(self) -> str:
        """A fingerprint of all ids in their order, and of what is learned: the same data, cut the same way."""
        found = hashlib.sha256()
        for example in self:
            found.update(example.ids.tobytes() + b"|")
            if example.trained is not None:
                found.update(example.trained.tobytes() + b"|")
        return found.hexdigest()

    def _of_each(self, column: str) -> Ints:
        import numpy as np

        found = [
            getattr(source, column)[pick]
            for source, pick in zip(self._sources, self._picks, strict=True)
            if len(pick)
        ]
        return np.concatenate(found) if found else np.zeros(0, np.int64)


def _example(source: Source, number: int) -> Example:
    return Example(source.ids(number), source.trained(number), source, number)
