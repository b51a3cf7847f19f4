"""The lines of a text: which are full because the next word did not fit, which begin with a speaker or a time."""

from __future__ import annotations

import re
from typing import NamedTuple

import numpy as np

from ...chunking import Flags, Ints
from ..unspaced import is_unspaced

# A long paragraph is judged in groups, so that one wide line decides nothing for the rest.
GROUP_LINES = 64  # lines that are judged together as wrapped or not
NARROW_LINE, WIDE_LINE, WIDEST_LINE = 40, 60, 120  # prose is wrapped at widths from 40 to 120
RAGGED_CHARS = 12  # characters by which a full line may be shorter than the widest: the next word did not fit
WRAPPED_SHARE = 0.7  # in wrapped prose, at least this share of the continued lines is full
WRAP_SAMPLE_CHARS, MIN_WRAPPED_LINES = 100_000, 50
OPENERS = "`\"'“”‘’«»‹›„‚([{¿¡—–-*_•"
ITEM = re.compile(r"\s*(?:[-*•–—+#>|]|\(?(?:\d{1,3}|[^\W\d_]|[ivxIVX]+)[.)])(?:\s|#)")
TAG_CHARS = 64  # searched for a speaker or a time
CLOCK = r"\d{1,2}:\d{2}(?::\d{2})?(?:\s?[AaPp]\.?[Mm]\.?)?"
NAME = r"\*{0,2}[^\W\d_][\w .'’#-]{0,30}(?: \([^()]{1,30}\))?\*{0,2}"
TAG = re.compile(
    rf"\s*(?:<[^<>]{{1,40}}>|\[[^\[\]]*{CLOCK}[^\[\]]*\]|\(?{CLOCK}\)?\s|[\d./-]{{6,10}},?\s{CLOCK}"
    rf"|{NAME}:(?=[\s*]|$)|.{{1,40}}\s{CLOCK}[\])]?$)"
)


class Lines(NamedTuple):
    """The lines of a text, and what they begin with."""

    texts: list[str]
    lengths: Ints
    blank: Flags
    capital: Flags
    small: Flags
    item: Flags


def split_lines(text: str) -> Lines:
    lines = text.split("\n")
    initials = [line.lstrip(OPENERS)[:1] for line in lines]
    return Lines(
        lines,
        np.array([len(line) for line in lines]),
        np.array([not line or line.isspace() for line in lines]),
        np.array([letter.isupper() for letter in initials]),
        np.array([letter.islower() for letter in initials]),
        np.array([bool(ITEM.match(line)) for line in lines]),
    )


def find_wrapped(lines: Lines) -> tuple[Ints, Ints, Flags]:
    """For each line its group, the width of the group, and whether it may be wrapped prose.

    Prose is a group about as wide as a page whose lines do not all begin with capitals, as those of verse do.
    """
    lengths, blank, capital = lines.lengths, lines.blank, lines.capital
    line_number = np.arange(len(lengths))
    line_of_paragraph = line_number - np.maximum.accumulate(np.where(blank, line_number, 0))
    # A blank line has the number 0 in its paragraph, so it begins a group, too.
    begins = line_of_paragraph % GROUP_LINES == 0
    group, first = np.cumsum(begins) - 1, np.flatnonzero(begins)
    width = np.maximum.reduceat(lengths, first)
    is_inner = ~(blank | begins | np.append(False, blank[:-1]))  # the first line of prose has a capital too
    count, capitals = np.bincount(group, is_inner), np.bincount(group, is_inner & capital)
    verse = (capitals >= 0.8 * count) & ((count > 1) | (width < WIDE_LINE))
    prose = (width >= NARROW_LINE) & (width <= WIDEST_LINE) & ~verse
    return group, width[group], prose[group]


def find_continued(lines: Lines, tagged: Flags) -> Flags:
    """Lines whose next line is neither blank, nor an item, nor begins with a speaker or a time."""
    return ~lines.blank & np.append(~(lines.blank | lines.item | tagged)[1:], False)


def find_full_lines(lines: Lines, continued: Flags) -> Flags:
    """Lines of wrapped prose that end because the next word did not fit; most lines around them must do so too."""
    group, width, prose = find_wrapped(lines)
    full: Flags = continued & prose & (lines.lengths > width - RAGGED_CHARS)
    # Shorter lines are full where the first word of the next one is long; that is looked at only where it decides.
    undecided = np.flatnonzero(continued & ~full & (prose | (width > WIDEST_LINE)))
    first_words = np.fromiter(
        (first_word_length(lines.texts[number + 1]) for number in undecided.tolist()), np.int64, len(undecided)
    )
    full[undecided] = lines.lengths[undecided] + 1 + first_words > width[undecided]
    wrapped: Flags = np.bincount(group, full) >= WRAPPED_SHARE * np.bincount(group, continued)
    return full & wrapped[group]


def find_wrap_width(text: str) -> int:
    """The width at which the lines of a text are wrapped, judged by its beginning; 0 if they are not."""
    lines = split_lines(text[:WRAP_SAMPLE_CHARS])
    continued = ~lines.blank & np.append(~lines.blank[1:], False)
    full = find_full_lines(lines, continued)
    if full.sum() < max(MIN_WRAPPED_LINES, WRAPPED_SHARE * continued.sum()):
        return 0
    # A few lines hang over the width; the widest of all would let no other line look full.
    return int(np.percentile(lines.lengths[full], 95))


def is_tagged(line: str) -> bool:
    """Whether a line begins with a speaker or a time."""
    head = line[:TAG_CHARS]
    return (":" in head or "<" in head) and TAG.match(line) is not None


def first_word_length(line: str) -> int:
    """The length of the first word, which would have to fit into the line before."""
    stripped = line.lstrip()
    return 1 if is_unspaced(stripped[:1]) else len(stripped.split(None, 1)[0]) if stripped else 0
