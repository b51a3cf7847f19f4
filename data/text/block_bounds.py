"""Where a text's units end: its sentences, or its lines where these are what it is made of.

    <anna> hi there           a log, verse, a script: most lines end without a stop, and not because they are full
    <bob> hey. how are you    so a block ends at a line's end, and a stop within a line divides only too long ones

Wrapped prose is no such text: its lines end because the next word did not fit. Each section between two hard cuts
is judged by itself, a short one by the whole text.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, NamedTuple

from ...chunking import Bounds
from . import sentences
from .sentences import RAGGED, WIDEST_LINE

if TYPE_CHECKING:
    from ...chunking import Ends, Flags, Ints, Sections

FEWEST_LINES = 8  # a section of fewer is judged by the whole text
MOSTLY = 0.7  # of a paragraph's lines that go on so many are full where it is wrapped
OPEN = 0.4  # so many of the lines end without a stop
TAGGED = 0.5  # or so many begin with who speaks, or when
IDEOGRAPH = "\u2e80"  # from here on a line is wrapped between any two characters
TAG_CHARS = 64  # looked at for who speaks, or when
CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?(?:\s?[AaPp]\.?[Mm]\.?)?"
NAME = r"\*{0,2}[^\W\d_][\w .'’#-]{0,30}(?: \([^()]{1,30}\))?\*{0,2}"
TAG = re.compile(
    rf"\s*(?:<[^<>]{{1,40}}>|\[[^\[\]]*{CLOCK}[^\[\]]*\]|\(?{CLOCK}\)?\s|[\d./-]{{6,10}},?\s{CLOCK}"
    rf"|{NAME}:(?=[\s*]|$)|.{{1,40}}\s{CLOCK}[\])]?$)"
)


def bounds(text: str, sections: Sections, asked: Ends = "auto") -> Bounds:
    """Where blocks may end: at sentences or at lines, as asked, or as each section's own lines and stops say."""
    import numpy as np

    read = [_read(text[start:end], start, asked) for start, end in sentences.stretches(text)]
    by_lines = np.full(len(sections), asked == "lines")
    if asked == "auto":
        by_lines = _judged([seen for _, seen in read if seen], sections)
    ends: Ints = np.concatenate([np.zeros(0, np.int64), *(found for found, _ in read)])
    if not by_lines.any():
        return Bounds(ends, ends[:0], by_lines)
    lines = np.concatenate([seen.ends[~seen.full | (asked == "lines")] for _, seen in read if seen])
    lines, inner = _within(lines, sections, by_lines), _within(ends, sections, by_lines)
    return Bounds(np.union1d(lines, np.setdiff1d(ends, inner, assume_unique=True)), inner, by_lines)


class Seen(NamedTuple):
    """The lines of a stretch that are not blank, and where its stops end sentences."""

    ends: Ints  # of several line ends the last
    at: Ints  # where its own characters end
    open: Flags  # no stop at its end, though the next word would have had room
    full: Flags  # no stop at its end, and no room for the next word
    tagged: Flags  # begins with who speaks, or when
    stops: Ints  # without the line ends behind them


def _read(text: str, start: int, asked: Ends) -> tuple[Ints, Seen | None]:
    """The ends of sentences in a stretch, and its lines where they may count."""
    lines, stops = sentences.lines_of(text), sentences.stop_ends(text)
    ends = sentences.ends_of(lines, stops) + start
    return ends, None if asked == "sentences" else _seen(lines, stops, start)


def _seen(lines: sentences.Lines, stops: Ints, start: int) -> Seen:
    import numpy as np

    after = np.cumsum(lines.lengths + 1)
    there = np.flatnonzero(~lines.blank)
    ends = np.minimum(after[np.append(there[1:], len(after)) - 1], after[-1] - 1)[: len(there)]
    tagged = np.array([_is_tagged(line) for line in lines.texts])
    goes_on = ~lines.blank & np.append(~(lines.blank | lines.item | tagged)[1:], False)
    at, last = after[there] - 1, np.searchsorted(ends, stops).clip(max=max(len(ends) - 1, 0))
    stopped = np.isin(ends, stops)
    if len(ends):
        stops = np.where(ends[last] == stops, at[last], stops)
    full = ~stopped & _full(lines, goes_on)[there]
    return Seen(ends + start, at + start, ~stopped & ~full, full, tagged[there], stops + start)


def _full(lines: sentences.Lines, goes_on: Flags) -> Flags:
    """Lines of wrapped prose that end because the next word had no room: so must most of those around them."""
    import numpy as np

    group, width, prose = sentences.wrapped(lines)
    full: Flags = goes_on & prose & (lines.lengths > width - RAGGED)
    left = np.flatnonzero(goes_on & ~full & (prose | (width > WIDEST_LINE)))
    words = np.fromiter((_first_word(lines.texts[number + 1]) for number in left.tolist()), np.int64, len(left))
    full[left] = lines.lengths[left] + 1 + words > width[left]
    wrapped: Flags = np.bincount(group, full) >= MOSTLY * np.bincount(group, goes_on)
    return full & wrapped[group]


def _is_tagged(line: str) -> bool:
    head = line[:TAG_CHARS]
    return (":" in head or "<" in head) and TAG.match(line) is not None


def _first_word(line: str) -> int:
    """How much of a line would have to fit into the one before."""
    bare = line.lstrip()
    return 1 if bare > IDEOGRAPH else len(bare.split(None, 1)[0]) if bare else 0


def _judged(seen: list[Seen], sections: Sections) -> Flags:
    """Of each section whether its lines are its units."""
    import numpy as np

    def counted(column: list[Ints]) -> Ints:
        places: Ints = np.concatenate([np.zeros(0, np.int64), *column])
        inside: Ints = np.searchsorted(sections.start, places - 1, side="right") - 1
        return np.bincount(inside[inside >= 0], minlength=len(sections))

    lines, stops = counted([part.at for part in seen]), counted([part.stops for part in seen])
    kinds = [counted([part.at[getattr(part, kind)] for part in seen]) for kind in ("open", "full", "tagged")]
    counts = np.array([lines, stops, *kinds])
    return np.where(lines < FEWEST_LINES, _are_units(*counts.sum(axis=1)), _are_units(*counts))


def _are_units(lines: Ints, stops: Ints, open_: Ints, full: Ints, tagged: Ints) -> Flags:
    """Many lines end without a stop and hold about a sentence, or many begin with who speaks; few are wrapped."""
    short = (open_ >= OPEN * lines) & (stops <= lines)
    return (lines > 1) & (2 * full <= open_) & (short | (tagged >= TAGGED * lines))


def _within(places: Ints, sections: Sections, by_lines: Flags) -> Ints:
    """Those places that lie in sections whose lines are their units."""
    import numpy as np

    inside = np.searchsorted(sections.start, places - 1, side="right") - 1
    return places[(inside >= 0) & by_lines[np.maximum(inside, 0)]]
