"""Where the units of a text end: at its sentences, or at its lines where the text is made of lines.

    <anna> hi there           a log, verse, a script: most lines end without a stop, though there was room for more
    <bob> hey. how are you    so blocks end at line ends, and stops divide only lines that are too long

Wrapped prose is different: its lines end because the next word did not fit. Each section between two hard cuts is
judged by itself, a short one by the whole text.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

import numpy as np

from ...chunking import BlockEnds, Flags, Ints, Sections, UnitBounds
from . import sentences
from .lines import Lines, find_continued, find_full_lines, is_tagged, split_lines

MIN_LINES = 8  # a section with fewer lines is judged by the whole text
OPEN_SHARE = 0.4  # lines are units if at least this share ends without a stop
TAGGED_SHARE = 0.5  # or if at least this share begins with a speaker or a time


class PartBounds(NamedTuple):
    """Where the units of a part of a text end, and what decides for the short sections of the whole text."""

    bounds: UnitBounds
    counts: Ints  # of the lines and stops of the part, which `is_by_lines` judges
    has_short: bool  # whether sections of the part are judged by the whole text


def find_bounds(text: str, sections: Sections, block_ends: BlockEnds = "auto") -> UnitBounds:
    """Where blocks may end: at sentences or lines by the setting, or by the lines and stops of each section."""
    stretches = (text[low:high] for low, high in sentences.split_stretches(text))
    return find_part_bounds(stretches, 0, len(text), sections, block_ends).bounds


def find_part_bounds(
    stretches: Iterable[str],
    start: int,
    length: int,
    sections: Sections,
    block_ends: BlockEnds,
    by_lines: bool | None = None,  # what short sections are judged to be; None where the part is the whole text
) -> PartBounds:
    """The bounds in the part of a text that begins at `start` of its first stretch, as the whole text has them."""
    nothing: Ints = np.zeros((2, 0), np.int64)
    ends, stops, places, kinds = [nothing[0]], [nothing[0]], [nothing], list[Flags]([np.zeros((4, 0), bool)])
    offset = -start
    for stretch in stretches:
        lines, found = split_lines(stretch), sentences.find_stop_ends(stretch)
        ends.append(sentences.merge_ends(stretch, lines, found) + offset)
        if block_ends != "sentences":
            line_places, line_kinds, line_stops = _read_lines(lines, found)
            places.append(line_places + offset)
            kinds.append(line_kinds)
            stops.append(line_stops + offset)
        offset += len(stretch)
    # What ends before the part or after it belongs to the parts around it, in whose stretches it is found too.
    sentence_ends, all_stops = np.concatenate(ends), np.concatenate(stops)
    sentence_ends = sentence_ends[(sentence_ends > 0) & (sentence_ends <= length)]
    all_stops = all_stops[(all_stops > 0) & (all_stops <= length)]
    line_ends, line_at = np.concatenate(places, axis=1)
    is_inside = (line_at > 0) & (line_at <= length)
    line_ends, line_at = line_ends[is_inside], line_at[is_inside]
    open_, full, divided, tagged = np.concatenate(kinds, axis=1)[:, is_inside]
    counts: Ints = np.zeros((5, len(sections)), np.int64)
    for row, column in enumerate((line_at, all_stops, line_at[open_], line_at[full], line_at[tagged])):
        section = _section_of(column, sections)
        counts[row] = np.bincount(section[section >= 0], minlength=len(sections))
    total, is_short = counts.sum(axis=1), counts[0] < MIN_LINES
    if block_ends == "auto":
        judged = np.where(is_short, is_by_lines(total) if by_lines is None else by_lines, is_by_lines(counts))
    else:
        judged = np.full(len(sections), block_ends == "lines")
    bounds = UnitBounds(sentence_ends, sentence_ends[:0], judged)
    if judged.any():
        # A wrapped line and one that the next line continues end nothing, unless the user asks for all lines.
        lines_of_units = line_ends[~(full | divided) | (block_ends == "lines")]

        def in_lines(places: Ints) -> Ints:
            """The places inside sections whose lines are their units."""
            section = _section_of(places, sections)
            return places[(section >= 0) & judged[np.maximum(section, 0)]]

        line_units, inner = in_lines(lines_of_units), in_lines(sentence_ends)
        others = np.setdiff1d(sentence_ends, inner, assume_unique=True)
        bounds = UnitBounds(np.union1d(line_units, others), inner, judged)
    return PartBounds(bounds, total, block_ends == "auto" and bool(is_short.any()))


def is_by_lines(counts: Ints) -> Flags:
    """Many lines end without a stop and hold about one sentence, or many begin with a speaker; few are wrapped."""
    lines, stops, open_, full, tagged = counts
    short = (open_ >= OPEN_SHARE * lines) & (stops <= lines)
    return (lines > 1) & (2 * full <= open_) & (short | (tagged >= TAGGED_SHARE * lines))


def _read_lines(lines: Lines, stops: Ints) -> tuple[Ints, Flags, Ints]:
    """The lines of a stretch that are not blank, and its stops without the line ends after them.

    Places: the last of several line ends, and where the characters of the line end. Kinds: open (no stop at its
    end, though the next word would have fit), full (no stop, and the next word did not fit), divided (no stop, and
    the next line is indented further), tagged (begins with a speaker or a time).
    """
    next_starts = np.cumsum(lines.lengths + 1)
    filled = np.flatnonzero(~lines.blank)
    last_ends = next_starts[np.append(filled[1:], len(next_starts)) - 1][: len(filled)]
    ends = np.minimum(last_ends, next_starts[-1] - 1)
    own_ends = next_starts[filled] - 1
    tagged = np.array([is_tagged(line) for line in lines.texts])
    # Long lines of verse and scripts go on in the next one, which begins small and is indented further.
    begins = [line.lstrip() for line in lines.texts]
    indents = lines.lengths - np.array([len(line) for line in begins])
    small = np.array([line[:1].islower() for line in begins])
    divided = np.append(small[1:] & (indents[1:] > indents[:-1]), False)[filled]
    full = find_full_lines(lines, find_continued(lines, tagged))[filled]
    unstopped = ~np.isin(ends, stops)
    # A stop before several line ends lies behind the last of them; it is counted where its line ends.
    if len(ends):
        line_of_stop = np.searchsorted(ends, stops).clip(max=len(ends) - 1)
        stops = np.where(ends[line_of_stop] == stops, own_ends[line_of_stop], stops)
    kinds = np.stack([unstopped & ~full, unstopped & full, unstopped & divided, tagged[filled]])
    return np.stack([ends, own_ends]), kinds, stops


def _section_of(places: Ints, sections: Sections) -> Ints:
    """The section that a unit ending at each place is in; -1 before the first one."""
    return np.searchsorted(sections.start, places - 1, side="right") - 1
