"""Paragraphs of a document to one text, with a hard cut wherever a chapter begins."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise
from typing import NamedTuple


class Paragraph(NamedTuple):
    """A paragraph as it reads. `level` is that of a heading; `cut` says that a new part begins with it."""

    text: str
    level: int = 0
    cut: bool = False
    line: bool = False  # an item of a list or a row of a table: no blank line between two of them


class Joined(NamedTuple):
    """The text, and how many parts it has."""

    text: str
    parts: int


def joined(paragraphs: Sequence[Paragraph], hard_cut: str) -> Joined:
    """Blank lines between paragraphs, and the hard cut (where there is one) between chapters.

    Chapters begin at the first kind of heading that is there more than once: a title alone divides nothing.
    """
    filled = _filled(paragraphs)
    chapter = _chapter_level(filled)
    parts: list[list[Paragraph]] = []
    for number, paragraph in enumerate(filled):
        begins = paragraph.cut or (0 < paragraph.level <= chapter and not _heading_alone(filled[:number], parts))
        if begins or not parts:
            parts.append([])
        parts[-1].append(paragraph)
    return Joined((hard_cut or "\n\n").join(map(_written, parts)), len(parts))


def _filled(paragraphs: Sequence[Paragraph]) -> list[Paragraph]:
    """Without blank ones; the cut before one of those is before the next."""
    found: list[Paragraph] = []
    cut = False
    for paragraph in paragraphs:
        cut = cut or paragraph.cut
        if paragraph.text.strip():
            found.append(paragraph._replace(text=paragraph.text.strip("\n"), cut=cut))
            cut = False
    return found


def _chapter_level(paragraphs: Sequence[Paragraph]) -> int:
    """The level of the headings that chapters have; 0 where there are none."""
    counted = Counter(p.level for p in paragraphs if p.level)
    return min((level for level, count in counted.items() if count > 1), default=0)


def _heading_alone(before: Sequence[Paragraph], parts: Sequence[Sequence[Paragraph]]) -> bool:
    """Whether the part so far is nothing but headings: 'Part One', then 'Chapter 1'."""
    return bool(before) and bool(parts) and all(p.level for p in parts[-1])


def _written(part: Sequence[Paragraph]) -> str:
    gaps = ["\n" if one.line and other.line else "\n\n" for one, other in pairwise(part)]
    return "".join(text + gap for text, gap in zip((p.text for p in part), [*gaps, ""], strict=True))
