"""Footnotes: neither a footnote between the halves of a sentence nor its mark in it ends that sentence."""

from __future__ import annotations

import re
from collections.abc import Iterator
from itertools import islice
from typing import NamedTuple

import numpy as np

from ...chunking import Ints

SIGN = r"\d{1,3}|\[\d{1,3}\]|\(?\*{1,3}\)?|[†‡]"
NOTE = re.compile(rf"\n[ \t]*({SIGN})[ \t]+(?=\S)")
MARK = re.compile(rf"(?<=[^\s\d]) ?({SIGN})(?![\w.)*])")
LINE = re.compile(r"[^\n]*\n")
GAP = re.compile(r"\n[ \t]*\n")
LETTER = re.compile(r"\w")
MARK_CHARS = 5000  # from a mark to its footnote: a page and more
HALF_CHARS = 40  # of the line before a footnote, so that no list is meant
MAX_LINES, MAX_NOTE_CHARS = 8, 2000  # of the footnotes between the halves of a sentence
OPEN_ENDS = ",;-–—"


class Note(NamedTuple):
    """A footnote: where its line begins, and where its mark stands in the text before."""

    start: int
    mark_start: int
    mark_end: int


def move_ends(text: str, ends: Ints) -> Ints:
    """The ends of sentences without those that a footnote makes; those before its mark are moved behind it."""
    notes = list(_find_notes(text))
    if not notes:
        return ends
    ends = _move_behind_marks(text, ends, notes)
    halves = np.array([_find_halves(text, note.start) for note in notes])
    inside: Ints = np.zeros(len(ends) + 1, np.int64)
    np.add.at(inside, np.searchsorted(ends, halves[:, 0]), 1)
    np.add.at(inside, np.searchsorted(ends, halves[:, 1], side="right"), -1)
    return ends[np.cumsum(inside)[:-1] == 0]


def _find_notes(text: str) -> Iterator[Note]:
    """Lines that begin with a sign which stands behind a word of the text before them, too."""
    marks: dict[str, tuple[int, int]] = {}
    searched = 0
    for line in NOTE.finditer(text):
        start = max(searched, line.start() - MARK_CHARS)
        marks.update((mark[1], mark.span(1)) for mark in MARK.finditer(text, start, line.start()))
        searched = line.end()
        if line[1] in marks and line.start() - marks[line[1]][0] <= MARK_CHARS:
            yield Note(line.start() + 1, *marks.pop(line[1]))


def _move_behind_marks(text: str, ends: Ints, notes: list[Note]) -> Ints:
    """A mark belongs to the sentence before it, which does not end there if a lowercase letter follows."""
    starts, mark_ends = np.array([note[1:] for note in notes]).T
    number: Ints = np.searchsorted(ends, starts - 1)
    at_mark = number < np.searchsorted(ends, starts, side="right")
    goes_on = np.array([_goes_on(text, note.mark_end) for note in notes])
    moved = ends.copy()
    moved[number[at_mark]] = mark_ends[at_mark]
    return np.delete(moved, number[at_mark & goes_on])


def _find_halves(text: str, note: int) -> tuple[int, int]:
    """The ends of the first half of a sentence and of the footnotes between it and the second; else 0, 0."""
    before = text[max(0, note - 2 * HALF_CHARS) : note].rstrip()
    half = before[before.rfind("\n") + 1 :]
    if len(half) < HALF_CHARS or not (half[-1].isalpha() or half[-1] in OPEN_ENDS):
        return 0, 0
    is_paragraph = text.startswith("\n", note - 2)
    second_half = _find_paragraph if is_paragraph else _find_line
    start = second_half(text, note)
    return (note - 1 - is_paragraph, start) if start else (0, 0)


def _find_line(text: str, note: int) -> int:
    """The first line behind a footnote that goes on with a sentence; 0 where an empty line comes first."""
    for line in islice(LINE.finditer(text, note, note + MAX_NOTE_CHARS), MAX_LINES):
        if line[0].isspace():
            return 0
        if _goes_on(text, line.end()):
            return line.end()
    return 0


def _find_paragraph(text: str, note: int) -> int:
    """The first paragraph behind those that are footnotes, if it goes on with a sentence; else 0."""
    for gap in islice(GAP.finditer(text, note, note + MAX_NOTE_CHARS), MAX_LINES):
        if not NOTE.match(text, gap.end() - 1):
            return gap.end() if _goes_on(text, gap.end()) else 0
    return 0


def _goes_on(text: str, place: int) -> bool:
    """Whether a sentence goes on at a place: the first letter there is lowercase."""
    letter = LETTER.search(text, place, place + HALF_CHARS)
    return letter is not None and letter[0].islower()
