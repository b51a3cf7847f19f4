"""What a model learns from: examples of ids, with where each came from."""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from ..chunking import Block, Ids, Sliced


@dataclass(frozen=True)
class Source:
    """One text as it was cut."""

    name: str
    sliced: Sliced


@dataclass(frozen=True)
class Example:
    """The ids of one example, and its place in the text that it came from."""

    ids: Ids
    source: Source
    block: Block

    @property
    def text(self) -> str:
        return self.source.sliced.text_of(self.block)


class Examples:
    """All examples of a run in the order of the files; ids are cut out when they are asked for."""

    def __init__(self, sources: Sequence[Source]) -> None:
        self._sources = sources
        self._ends = _running_sum(len(s.sliced) for s in sources)

    def __len__(self) -> int:
        return self._ends[-1] if self._ends else 0

    def __getitem__(self, number: int) -> Example:
        if not 0 <= number < len(self):
            raise IndexError(number)
        which = bisect_right(self._ends, number)
        first = self._ends[which - 1] if which else 0
        return _example(self._sources[which], self._sources[which].sliced[number - first])

    def __iter__(self) -> Iterator[Example]:
        return (_example(source, block) for source in self._sources for block in source.sliced)

    def longest(self) -> int:
        """The tokens of the longest example."""
        return max((int(s.sliced.lengths.max()) for s in self._sources if len(s.sliced)), default=0)

    def lengths(self) -> list[int]:
        """The tokens of each example, without cutting any out."""
        return [int(length) for s in self._sources for length in s.sliced.lengths]

    def digest(self) -> str:
        """A fingerprint of all ids in their order: the same data, cut the same way."""
        found = hashlib.sha256()
        for example in self:
            found.update(example.ids.tobytes() + b"|")
        return found.hexdigest()


def _example(source: Source, block: Block) -> Example:
    return Example(source.sliced.ids_of(block), source, block)


def _running_sum(lengths: Iterator[int]) -> list[int]:
    ends, total = [], 0
    for length in lengths:
        total += length
        ends.append(total)
    return ends
