"""Where the units of a text end: at its sentences, or at its lines where the text is made of lines.

    <anna> hi there           a log, verse, a script: most lines end without a stop, though there was room for more
    <bob> hey. how are you    so blocks end at line ends, and stops divide only lines that are too long

Wrapped prose is different: its lines end because the next word did not fit. Each section between two hard cuts is
judged by itself, a short one by the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from typing import NamedTuple

import numpy as np

from ...chunking import BlockEnds, Flags, Ints, Sections, UnitBounds
from . import sentences
from .lines import Lines, find_continued, find_full_lines, is_tagged, split_lines

MIN_LINES = 8  # a section with fewer lines is judged by the whole text
OPEN_SHARE = 0.4  # lines are units if at least this share ends without a stop
TAGGED_SHARE = 0.5  # or if at least this share begins with a speaker or a time


def find_bounds(text: str, sections: Sections, block_ends: BlockEnds = "auto") -> UnitBounds:
    """Where blocks may end: at sentences or lines by the setting, or by the lines and stops of each section."""
    stretches = [_read_stretch(text[low:high], low, block_ends) for low, high in sentences.split_stretches(text)]
    counts = _count_lines(stretches, sections)
    return _join_bounds(stretches, sections, block_ends, _are_by_lines(counts, is_by_lines(counts.sum(axis=1))))


class PartBounds(NamedTuple):
    """Where the units of a part of a text end, and what decides for the short sections of the whole text."""

    bounds: UnitBounds
    counts: Ints  # of the lines and stops of the part, which `is_by_lines` judges
    has_short: bool  # whether sections of the part are judged by the whole text


def find_part_bounds(
    stretches: Iterable[str], start: int, length: int, sections: Sections, block_ends: BlockEnds, *, by_lines: bool
) -> PartBounds:
    """What `find_bounds` finds in the part of a text that begins in its first stretch.

    `by_lines`: what short sections are judged to be, as `is_by_lines` says of the counts of all parts.
    """
    read, place = list[Stretch](), -start
    for text in stretches:
        read.append(_read_stretch(text, place, block_ends).inside(length))
        place += len(text)
    counts = _count_lines(read, sections)
    bounds = _join_bounds(read, sections, block_ends, _are_by_lines(counts, by_lines))
    return PartBounds(bounds, counts.sum(axis=1), block_ends == "auto" and bool((counts[0] < MIN_LINES).any()))


def _are_by_lines(counts: Ints, short: Flags) -> Flags:
    """Which sections have lines as units; short sections are as the whole text is."""
    return np.where(counts[0] < MIN_LINES, short, is_by_lines(counts))


def _join_bounds(
    stretches: Sequence[Stretch], sections: Sections, block_ends: BlockEnds, judged: Flags
) -> UnitBounds:
    by_lines = judged if block_ends == "auto" else np.full(len(sections), block_ends == "lines")
    ends: Ints = np.concatenate([np.zeros(0, np.int64), *(stretch.sentences for stretch in stretches)])
    if not by_lines.any():
        return UnitBounds(ends, ends[:0], by_lines)
    lines = np.concatenate([stretch.line_ends(all_of_them=block_ends == "lines") for stretch in stretches])
    lines, inner = _places_by_lines(lines, sections, by_lines), _places_by_lines(ends, sections, by_lines)
    return UnitBounds(np.union1d(lines, np.setdiff1d(ends, inner, assume_unique=True)), inner, by_lines)


class LineStats(NamedTuple):
    """The non-blank lines of a stretch, and the stops that end sentences in it."""

    ends: Ints  # the last of several line ends
    at: Ints  # where the characters of the line end
    open: Flags  # no stop at its end, though the next word would have fit
    full: Flags  # no stop at its end, and the next word did not fit
    divided: Flags  # no stop at its end, and the next line is indented further
    tagged: Flags  # begins with a speaker or a time
    stops: Ints  # without the line ends after them

    def inside(self, length: int) -> LineStats:
        *lines, stops = self
        is_inside = _is_inside(self.at, length)
        ends, at, *flags = (column[is_inside] for column in lines)
        open_, full, divided, tagged = flags
        return LineStats(ends, at, open_, full, divided, tagged, stops[_is_inside(stops, length)])


class Stretch(NamedTuple):
    """Where the sentences of a stretch end, and its lines; without lines where they can't be units."""

    sentences: Ints
    lines: LineStats

    def inside(self, length: int) -> Stretch:
        """What ends behind 0 and not behind this place."""
        return Stretch(self.sentences[_is_inside(self.sentences, length)], self.lines.inside(length))

    def line_ends(self, *, all_of_them: bool) -> Ints:
        """Where the lines end that are units."""
        ends: Ints = self.lines.ends[~(self.lines.full | self.lines.divided) | all_of_them]
        return ends


def _is_inside(places: Ints, length: int) -> Flags:
    return (places > 0) & (places <= length)


_NO_PLACES: Ints = np.zeros(0, np.int64)
_NO_FLAGS: Flags = np.zeros(0, bool)
NO_LINES = LineStats(_NO_PLACES, _NO_PLACES, _NO_FLAGS, _NO_FLAGS, _NO_FLAGS, _NO_FLAGS, _NO_PLACES)


def _read_stretch(text: str, start: int, block_ends: BlockEnds) -> Stretch:
    lines, stops = split_lines(text), sentences.find_stop_ends(text)
    ends = sentences.merge_ends(text, lines, stops) + start
    return Stretch(ends, NO_LINES if block_ends == "sentences" else _line_stats(lines, stops, start))


def _line_stats(lines: Lines, stops: Ints, start: int) -> LineStats:
    next_starts = np.cumsum(lines.lengths + 1)
    non_blank = np.flatnonzero(~lines.blank)
    ends = np.minimum(next_starts[np.append(non_blank[1:], len(next_starts)) - 1], next_starts[-1] - 1)[
        : len(non_blank)
    ]
    tagged = np.array([is_tagged(line) for line in lines.texts])
    continued = find_continued(lines, tagged)
    own_ends = next_starts[non_blank] - 1
    line_of_stop = np.searchsorted(ends, stops).clip(max=max(len(ends) - 1, 0))
    stopped = np.isin(ends, stops)
    if len(ends):
        stops = np.where(ends[line_of_stop] == stops, own_ends[line_of_stop], stops)
    full = ~stopped & find_full_lines(lines, continued)[non_blank]
    divided = ~stopped & _find_divided(lines)[non_blank]
    places = (ends + start, own_ends + start)
    return LineStats(*places, ~stopped & ~full, full, divided, tagged[non_blank], stops + start)


def _find_divided(lines: Lines) -> Flags:
    """Lines that go on in the next one, which is indented further, as long lines of verse and scripts do."""
    begins = [line.lstrip() for line in lines.texts]
    indents = lines.lengths - np.array([len(line) for line in begins])
    small = np.array([line[:1].islower() for line in begins])
    return ~lines.blank & np.append(small[1:] & (indents[1:] > indents[:-1]), False)


def _count_lines(stretches: Sequence[Stretch], sections: Sections) -> Ints:
    """The lines, stops, and open, full and tagged lines of each section."""

    def count_by_section(column: list[Ints]) -> Ints:
        all_places: Ints = np.concatenate([np.zeros(0, np.int64), *column])
        section: Ints = np.searchsorted(sections.start, all_places - 1, side="right") - 1
        return np.bincount(section[section >= 0], minlength=len(sections))

    lines = [stretch.lines for stretch in stretches]
    columns = [[part.at for part in lines], [part.stops for part in lines]]
    columns += [[part.at[getattr(part, kind)] for part in lines] for kind in ("open", "full", "tagged")]
    return np.array([count_by_section(column) for column in columns])


def is_by_lines(counts: Ints) -> Flags:
    """Many lines end without a stop and hold about one sentence, or many begin with a speaker; few are wrapped."""
    lines, stops, open_, full, tagged = counts
    short = (open_ >= OPEN_SHARE * lines) & (stops <= lines)
    return (lines > 1) & (2 * full <= open_) & (short | (tagged >= TAGGED_SHARE * lines))


def _places_by_lines(places: Ints, sections: Sections, by_lines: Flags) -> Ints:
    """The places inside sections whose lines are their units."""
    section = np.searchsorted(sections.start, places - 1, side="right") - 1
    return places[(section >= 0) & by_lines[np.maximum(section, 0)]]
