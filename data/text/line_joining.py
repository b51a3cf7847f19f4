"""Join the lines of paragraphs that are wrapped, as those of books from Project Gutenberg are."""

from __future__ import annotations

import re

import numpy as np

from ...chunking import Flags
from ..unspaced import joint
from .lines import (
    WIDEST_LINE,
    Lines,
    find_continued,
    find_full_lines,
    find_wrapped,
    first_word_length,
    is_tagged,
    split_lines,
)
from .sentences import split_stretches

MIN_WIDTH = 0.75  # of the usual width; a shorter line does not end because the next word did not fit
CELLS = re.compile(r"\S(?: {4,}|\t)\S")  # a row of a table
HYPHENATED = re.compile(r"\w(?:-{1,2}|[‐–—])$")


def join_wrapped_lines(text: str, width: int) -> str:
    """The text with the lines of each paragraph of wrapped prose joined; all other lines stay."""
    return "".join(_join_lines(split_lines(text[start:end]), width) for start, end in split_stretches(text))


def _join_lines(lines: Lines, width: int) -> str:
    joined = _find_joined(lines, width)
    pieces = list[str]()
    for number, line in enumerate(lines.texts):
        line = line.lstrip() if number and joined[number - 1] else line
        if joined[number]:
            line = line.rstrip()
            pieces += [line, _joint(line, lines.texts[number + 1].lstrip())]
        else:
            pieces += [line, "\n"]
    return "".join(pieces[:-1])


def _find_joined(lines: Lines, width: int) -> Flags:
    """Lines that end because the next word did not fit, and that the next line continues."""
    tagged = np.array([is_tagged(line) for line in lines.texts]) & ~lines.small  # a colon in prose is no tag
    continued = find_continued(lines, tagged) & ~np.append(_begins_paragraph(lines)[1:], True)
    continued &= ~np.array([CELLS.search(line) is not None for line in lines.texts])
    group, _, _ = find_wrapped(lines)
    is_wrapped = np.bincount(group, find_full_lines(lines, continued)) > 0
    next_words = np.array([*map(first_word_length, lines.texts[1:]), 0])
    is_full = lines.lengths + 1 + next_words > width
    is_ragged: Flags = is_wrapped[group] & (lines.lengths >= MIN_WIDTH * width)
    return continued & (is_full | is_ragged)


def _begins_paragraph(lines: Lines) -> Flags:
    """Which lines are indented further than others of their paragraph."""
    indents = np.array([len(line) - len(line.lstrip()) for line in lines.texts])
    group, _, _ = find_wrapped(lines)
    least = np.full(group[-1] + 1, WIDEST_LINE)
    np.minimum.at(least, group, np.where(lines.blank, WIDEST_LINE, indents))
    begins: Flags = indents > least[group]
    return begins


def _joint(line: str, next_line: str) -> str:
    """Nothing behind a hyphen or a dash inside a word, and in scripts that are written without spaces."""
    return "" if HYPHENATED.search(line) else joint(line, next_line)
