"""Paragraphs of a document to one text, with a hard cut at the beginning of each chapter."""

from __future__ import annotations

from collections import Counter
from collections.abc import Container, Iterator, Sequence
from itertools import accumulate, groupby, pairwise
from typing import Any, NamedTuple


class Paragraph(NamedTuple):
    """A paragraph of a document. `level` is that of a heading, 0 for text; with `cut`, a part begins here."""

    text: str
    level: int = 0
    cut: bool = False
    line: bool = False  # an item of a list or a row of a table: no blank line between two of them
    menu: bool = False  # navigation of a web page
    links: int = 0  # of a web page, in a paragraph without other words


class JoinedText(NamedTuple):
    """A text, the number of its parts, and the places of its menus."""

    text: str
    parts: int
    menus: tuple[tuple[int, int], ...] = ()


def join_paragraphs(paragraphs: Sequence[Paragraph], hard_cut: str) -> JoinedText:
    """Join paragraphs by blank lines, and chapters by the hard cut (where there is one).

    Chapters begin at the first level of heading that occurs more than once: a title alone divides nothing.
    """
    non_blank = _drop_blank(paragraphs)
    chapter_level = _chapter_level(non_blank)
    parts: list[list[Paragraph]] = []
    only_headings = True  # in the part so far: 'Part One', then 'Chapter 1'
    for paragraph in non_blank:
        if paragraph.cut or not parts or (0 < paragraph.level <= chapter_level and not only_headings):
            parts.append([])
            only_headings = True
        parts[-1].append(paragraph)
        only_headings = only_headings and paragraph.level > 0
    return _join_parts(parts, hard_cut or "\n\n")


def _drop_blank(paragraphs: Sequence[Paragraph]) -> list[Paragraph]:
    """Paragraphs that are not blank; a cut before a blank one moves to the next."""
    non_blank: list[Paragraph] = []
    cut = False
    for paragraph in paragraphs:
        cut = cut or paragraph.cut
        if paragraph.text.strip():
            non_blank.append(paragraph._replace(text=paragraph.text.strip("\n"), cut=cut))
            cut = False
    return non_blank


def _chapter_level(paragraphs: Sequence[Paragraph]) -> int:
    """The level of the chapter headings; 0 where there are none."""
    counts = Counter(p.level for p in paragraphs if p.level)
    return min((level for level, count in counts.items() if count > 1), default=0)


def _join_parts(parts: Sequence[Sequence[Paragraph]], hard_cut: str) -> JoinedText:
    texts, menus = [], []
    start = 0
    for part in parts:
        lines = _with_gaps(part)
        texts.append("".join(lines))
        menus += [(start + first, start + end) for first, end in _menus(part, lines)]
        start += len(texts[-1]) + len(hard_cut)
    return JoinedText(hard_cut.join(texts), len(parts), tuple(menus))


def _with_gaps(part: Sequence[Paragraph]) -> list[str]:
    """The text of each paragraph with the line breaks after it."""
    gaps = ["\n" if first.line and second.line else "\n\n" for first, second in pairwise(part)]
    return [paragraph.text + gap for paragraph, gap in zip(part, [*gaps, ""], strict=True)]


def _menus(part: Sequence[Paragraph], lines: Sequence[str]) -> list[tuple[int, int]]:
    """Where the menus of a part begin and end; paragraphs of a menu that follow each other are one."""
    ends = list(accumulate(map(len, lines)))
    runs = [list(run) for menu, run in groupby(range(len(part)), lambda number: part[number].menu) if menu]
    return [(ends[run[0]] - len(lines[run[0]]), ends[run[-1]]) for run in runs]


def outermost(root: Any, tags: Container[str], skipped: Container[str]) -> Iterator[Any]:
    """The elements of a document with these tags, without those inside another one of them or a skipped one."""
    stack = list(reversed(root))
    while stack:
        element = stack.pop()
        if element.tag in tags:
            yield element
        elif element.tag not in skipped:
            stack += reversed(element)
