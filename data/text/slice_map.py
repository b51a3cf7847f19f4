"""How a text was cut, in numbers: what Check says of it, and what the page draws."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

from ...chunking import KINDS
from ...train_utils import plural, several

if TYPE_CHECKING:
    from ...chunking import Ints, Kind, Sliced

COLUMNS = 200  # the map's width: a part of the text in each column
MOST_DRAWN = 2000  # blocks or hard cuts that a map shows one by one


class Bar(NamedTuple):
    """A block on the map, from start to end as shares of the text."""

    start: float
    end: float
    kind: Kind


class Seen(NamedTuple):
    """How many blocks a sentence is in."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True)
class SliceMap:
    """One text and its blocks; places are shares of the text, 0 its beginning and 1 its end."""

    characters: int
    sections: int
    sentences: int
    lines: int  # in the parts whose lines are the units of its blocks
    parts_by_lines: int
    blocks: int
    overlaps: int
    windows: int  # blocks of DEMENTOR
    hard_cuts: tuple[float, ...]
    bars: tuple[Bar, ...]  # empty where there are too many to draw
    seen_along: tuple[float, ...]  # how often each part of the text is seen, a part a column
    seen: Seen
    tokens: int  # of the text itself
    trained_tokens: int  # of all blocks, BOS and EOS included
    left_out: int  # blocks
    left_out_characters: int
    lost: tuple[str, ...]  # what is in no block, a few as examples
    lost_characters: int

    @property
    def growth(self) -> float:
        """By what factor the tokens of a pass over the text grow."""
        return self.trained_tokens / self.tokens if self.tokens else 0.0

    @property
    def units(self) -> int:
        """The sentences and lines that its blocks are made of."""
        return self.sentences + self.lines

    @property
    def ends(self) -> str:
        """Where its blocks end, in words."""
        return ends_said(self.parts_by_lines, self.sections)

    @property
    def proof(self) -> str:
        """The line that says whether anything is missing."""
        said = f"characters lost: {self.lost_characters}"
        if self.lost_characters:
            said += f" ({', '.join(map(repr, self.lost))}: no ids, or more than a block holds)"
        if self.left_out:
            blocks, characters = several(self.left_out, "block"), several(self.left_out_characters, "character")
            said += f"; left out for being short: {blocks}, {characters}"
        return said


def ends_said(by_lines: int, parts: int) -> str:
    """At what blocks end, where so many of the parts are taken by their lines."""
    if 0 < by_lines < parts:
        return f"sentences, in {by_lines} of {parts} parts at lines"
    return "lines" if by_lines else "sentences"


def units_said(sentences: int, lines: int) -> str:
    """How many sentences and lines there are: '340 sentences, 12 lines'."""
    counted = ((sentences, "sentence"), (lines, "line"))
    return ", ".join(f"{n:,} {plural(n, what)}" for n, what in counted if n) or "0 sentences"


def unit_said(sentences: int, lines: int) -> str:
    """What blocks are made of: 'sentence', 'line', or both."""
    return "sentence or line" if sentences and lines else "line" if lines else "sentence"


def build_slice_map(sliced: Sliced, columns: int = COLUMNS) -> SliceMap:
    """The map of one cut text."""
    lines = int((sliced.units.opens & sliced.sections.by_lines[sliced.units.section]).sum())
    kinds = dict(zip(KINDS, _counts(sliced.spans.kind, len(KINDS)), strict=True))
    return SliceMap(
        characters=len(sliced.text),
        sections=len(sliced.sections),
        sentences=int(sliced.units.opens.sum()) - lines,
        lines=lines,
        parts_by_lines=int(sliced.sections.by_lines.sum()),
        blocks=kinds["block"],
        overlaps=kinds["overlap"],
        windows=kinds["dementor"],
        hard_cuts=_shares(sliced.sections.cuts[:: _every(len(sliced.sections.cuts))], len(sliced.text)),
        bars=_bars(sliced),
        seen_along=_seen_along(sliced, columns),
        seen=_seen(sliced),
        tokens=len(sliced.units.ids),
        trained_tokens=int(sliced.lengths.sum()),
        left_out=sliced.left_out,
        left_out_characters=sliced.left_out_characters,
        lost=tuple(
            sliced.text[start:end] for (start, end), _ in zip(sliced.lost_places(), range(3), strict=False)
        ),
        lost_characters=sliced.lost,
    )


def _counts(values: Ints, size: int) -> list[int]:
    import numpy as np

    counted: list[int] = np.bincount(values, minlength=size).tolist()
    return counted


def _every(count: int) -> int:
    """The step at which so many things are thinned out to what can be drawn."""
    return max(1, -(-count // MOST_DRAWN))


def _shares(places: Ints, length: int) -> tuple[float, ...]:
    return tuple((places / max(length, 1)).tolist())


def _bars(sliced: Sliced) -> tuple[Bar, ...]:
    if len(sliced) > MOST_DRAWN:
        return ()
    length = max(len(sliced.text), 1)
    return tuple(Bar(block.start / length, block.end / length, block.kind) for block in sliced)


def _seen_along(sliced: Sliced, columns: int) -> tuple[float, ...]:
    """The mean number of blocks over each column's part of the text."""
    import numpy as np

    edges = np.linspace(0, len(sliced.text), columns + 1)
    starts, ends = np.sort(sliced.starts), np.sort(sliced.ends)
    covered = _covered_until(edges, starts) - _covered_until(edges, ends)
    widths = np.maximum(np.diff(edges), 1e-9)
    return tuple((np.diff(covered) / widths).round(3).tolist()) if len(sliced.text) else (0.0,) * columns


def _covered_until(edges: Ints, places: Ints) -> Ints:
    """The sum over all places of how far each edge lies beyond it."""
    import numpy as np

    before = np.searchsorted(places, edges, side="right")
    sums = np.concatenate([[0.0], np.cumsum(places)])
    return before * edges - sums[before]


def _seen(sliced: Sliced) -> Seen:
    import numpy as np

    if not len(sliced.units):
        return Seen(0, 0.0, 0)
    steps: Ints = np.zeros(len(sliced.units) + 1, np.int64)
    np.add.at(steps, sliced.spans.first, 1)
    np.add.at(steps, sliced.spans.last, -1)
    times = np.cumsum(steps[:-1])
    return Seen(int(times.min()), round(float(times.mean()), 2), int(times.max()))


def together(maps: Sequence[SliceMap]) -> Seen:
    """How often the sentences of several texts are seen."""
    units = sum(each.units for each in maps)
    mean = sum(each.seen.mean * each.units for each in maps) / max(units, 1)
    least, most = min((each.seen.least for each in maps), default=0), max((m.seen.most for m in maps), default=0)
    return Seen(least, round(mean, 2), most)
