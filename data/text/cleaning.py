"""What of a text may be changed before it is sliced: boilerplate is dropped, and wrapped lines are joined.

Boilerplate is what is not the book in a book file: publisher's notices, contents, page headings, illustration
marks. What looks like it but may be the author's stays: each rule asks for a proof in the text itself.
"""

from __future__ import annotations

import re
from bisect import bisect_left
from collections import Counter, defaultdict
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from itertools import islice, pairwise
from statistics import mean, pstdev
from typing import NamedTuple

import numpy as np

from ...settings.definitions import TextSettings
from ...train_utils import format_count
from .. import arrow_store
from ..arrow_store import Store, StoreEntry
from ..hyphens import SUSPENDED, find_words, has_hyphen
from ..readers import LoadedText
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

GUTENBERG_START = re.compile(r"^\*{3} ?START OF (?:THE|THIS) PROJECT GUTENBERG[^*]*\*{3}", re.MULTILINE)
GUTENBERG_END = re.compile(
    r"^(?:\*{3} ?END OF (?:THE|THIS) PROJECT GUTENBERG|End of (?:the )?Project Gutenberg)", re.MULTILINE
)
LICENSE_END = re.compile(
    r"newsletter\s+to\s+hear\s+about\s+new\s+ebooks\.(?:\s*\*+ ?END[^\n*]*\*+)?", re.IGNORECASE
)
CREDITS = re.compile(
    r"\s*(?:(?:(?:Produced|E-text prepared) by|Transcribed (?:by|from)) [^\n]+(?:\n[^\n]+)*"
    r"|\[Transcriber[’']s Notes?:(?:[^\]\[]|\[[^\]]*\]){0,3000}\])"
)
IMPRINT = re.compile(
    r"^Imprint\n\s*This ebook is the product of many hours of .{0,4000}?standardebooks\.org\W*$", re.M | re.S
)
COLOPHON = re.compile(r"^Colophon\n(?=.{0,4000}Standard Ebooks)", re.MULTILINE | re.DOTALL)
ILLUSTRATION = re.compile(r"^[ \t]*\[(?:Illustration|Frontispiece)(?:: [^\]\[]{0,500})?\][ \t]*$", re.MULTILINE)
CONTENTS = re.compile(
    r"^[ \t*_#=—-]*(?:(?:table of )?contents|inhalt(?:sverzeichnis)?|table des matières|índice|indice|содержание"
    r"|оглавление|目录|目錄|目次)[ \t*_#=—:.-]*$",
    re.IGNORECASE | re.MULTILINE,
)
# Of Obsidian and other notes: keys in lowercase, which the speakers of a dialogue are not.
FRONT_MATTER = re.compile(r"\A---\n(?=[a-z])(?:(?!---\n)(?:[a-z][\w-]*:.*|[ \t-].*)\n)+---(?:\n|\Z)")
LINE = re.compile(r"[^\n]*\S[^\n]*")
NUMBERED_LINE = re.compile(r"^[^\n]{0,80}\d[^\n]{0,80}$", re.MULTILINE)
NUMBERED = re.compile(
    r"(?:chapter|book|part|canto|letter|act|scene|psalm|sonnet|hymn|song|poem|stanza|section|lesson|question|day|night"
    r"|kapitel|chapitre|capítulo|capitolo|глава|часть)\b|第.{1,6}[回章节節卷]",
    re.IGNORECASE,
)
ENTRY_NUMBER = re.compile(r"^\W*(?:[ivxlc]{1,8}|\d{1,3})\b[.):]?\s+(?=\S)", re.IGNORECASE)
PAGE_AT_END = re.compile(r"(?:\s*[.…](?: ?[.…])+\s*|\s{2,}|\t)(?:\d{1,4}|[ivxlc]+)\s*$")
HEADING = re.compile(r"\W*(?:(?P<first>\d{1,4})\W+(?P<after>\S.*)|(?P<before>\S.*?)\W+(?P<last>\d{1,4}))\W*$")
PAGE_NUMBER = re.compile(r"\W{0,3}(\d{1,4})\W{0,3}")
LETTERS = re.compile(r"[\W\d_]+")
SPACES = re.compile(r"\s*")
SENTENCE_ENDS = tuple(".!?…:;\"'”’»)。！？」』")
INSIDE_THE_TEXT = ("page heading", "page number", "illustration mark")
ENTRY_CHARS = 160  # of a line of the contents
MIN_ENTRIES, MAX_ENTRIES = 5, 1000
MIN_HEADINGS, MIN_HEADING_LETTERS, MAX_HEADING_CHARS = 5, 3, 80
MAX_NOTICE_CHARS = 60_000  # a license and the small print before the next book; more is another text
# Numbers that are closer to each other are those of poems or questions; those farther apart, of chapters.
MIN_PAGE_CHARS, MAX_PAGE_CHARS = 800, 6000
DIVIDING_SHARE = 0.25  # of the pages end inside a sentence; a chapter or a day of a diary does not
SEARCHED_CHARS = 200  # before a line, for the end of a sentence
GROWING, MANY_PAGES, GROWING_IN_A_SCAN = 0.9, 30, 0.6  # the share of page numbers that grow; a scan garbles many
MIN_PAGES, MAX_SPREAD = 30, 0.5  # page numbers, and how much the lengths of pages may differ
MIN_WIDTH = 0.75  # of the usual width; a shorter line does not end because the next word did not fit
CELLS = re.compile(r"\S(?: {4,}|\t)\S")  # a row of a table
HYPHENATED = re.compile(r"\w(?:-{1,2}|[‐–—])$")
HYPHEN_AT_END = re.compile(r"\w[-‐]$")  # no dash

Spans = Sequence[tuple[int, int]]


class Boilerplate(NamedTuple):
    """A stretch of text that is not the book."""

    kind: str
    start: int
    end: int


class Line(NamedTuple):
    """A line that is not empty: where it begins and ends, and its text."""

    start: int
    end: int
    text: str


def clean(text: str, found: Sequence[Boilerplate], width: int, settings: TextSettings) -> str:
    """The text with the changes that are asked for; `width` is that at which its lines are wrapped, or 0."""
    if settings.drop_boilerplate and found:
        text = remove_boilerplate(text, found)
    return join_wrapped_lines(text, width) if settings.join_lines and width else text


def mark(text: LoadedText, boilerplate: str, width: int, settings: TextSettings) -> LoadedText:
    """The text with notes of what was changed in it, and with what Check can suggest to change."""
    notes = list(text.notes)
    if settings.drop_boilerplate and boilerplate:
        notes.append(f"Dropped from {text.name}: {boilerplate}.")
    if settings.join_lines and width:
        notes.append(f"Joined the lines of {text.name}, which were wrapped at about {width} characters.")
    return replace(
        text,
        boilerplate="" if settings.drop_boilerplate else boilerplate,
        wrap_width=0 if settings.join_lines else width,
        notes=tuple(notes),
    )


def load_or_find(texts: Sequence[tuple[str, Spans]], store: Store) -> list[list[Boilerplate]]:
    """The boilerplate of each text of a dataset, with the menus that its reader found; stored or found now."""
    key = arrow_store.cache_key("boilerplate", *((arrow_store.text_digest(text), menus) for text, menus in texts))
    if entry := store.load(key):
        return [[Boilerplate(*values) for values in parts] for parts in entry.metadata]
    found = [find_boilerplate(text, menus) for text, menus in texts]
    store.save(key, StoreEntry({}, found))
    return found


def find_boilerplate(text: str, menus: Spans = (), *, begins_file: bool = True) -> list[Boilerplate]:
    """Everything that is not the book, in its order; a text that doesn't begin a file may begin inside a book."""
    numbered = list(_lines(text, NUMBERED_LINE))
    found = [
        *_notices(text, begins_file),
        *_contents(text),
        *_headings(text, numbered),
        *_page_numbers(text, numbered),
    ]
    found += [Boilerplate("illustration mark", m.start(), m.end()) for m in ILLUSTRATION.finditer(text)]
    if begins_file and (matter := FRONT_MATTER.match(text)):
        found.append(Boilerplate("front matter block", 0, matter.end()))
    found += [Boilerplate("navigation menu", start, end) for start, end in menus]
    parts: list[Boilerplate] = []
    # Of two that begin together the longer comes first, so that the other one is inside it.
    for part in sorted(found, key=lambda part: (part.start, -part.end)):
        if not parts or part.start >= parts[-1].end:
            parts.append(part)
    return parts


def remove_boilerplate(text: str, parts: Sequence[Boilerplate]) -> str:
    """Return the text without these stretches. What a page heading divided is joined again."""
    kept, place = list[str](), 0
    for part in parts:
        before = (kept.pop() if kept and place >= part.start else "") + text[place : part.start]
        place = part.end
        if part.kind in INSIDE_THE_TEXT:
            gap = SPACES.match(text, place)[0]  # type: ignore[index]  # it matches nothing too
            place += len(gap)
            if text[place : place + 1].islower() and before.rstrip()[-1:] not in SENTENCE_ENDS:
                before = before.rstrip() + "\n"
            elif gap.count("\n") > len(before) - len(before.rstrip("\n")):  # it may be a hard cut
                before = before.rstrip("\n") + gap
        kept.append(before)
    return "".join([*kept, text[place:]])


def describe_boilerplate(parts: Iterable[Boilerplate]) -> str:
    """Name what was found, with its size: '61 page headings (601 characters), ...'."""
    sizes: dict[str, list[int]] = defaultdict(list)
    for part in parts:
        sizes[part.kind].append(part.end - part.start)
    return ", ".join(
        f"{format_count(len(lengths), kind)} ({format_count(sum(lengths), 'character')})"
        for kind, lengths in sizes.items()
    )


def _notices(text: str, begins_file: bool) -> Iterator[Boilerplate]:
    """What Project Gutenberg and Standard Ebooks put before and after each of their books."""
    starts = []
    for start in GUTENBERG_START.finditer(text):
        end = start.end()
        while credits := CREDITS.match(text, end):  # who typed and checked the book
            end = credits.end()
        starts.append((start.start(), end))
    ends = [end.start() for end in GUTENBERG_END.finditer(text)]
    imprints = [imprint.span() for imprint in IMPRINT.finditer(text)]
    # Imprints and colophons come in pairs in books of Standard Ebooks; 'Colophon' alone may be a chapter.
    colophons = [end.start() for end in COLOPHON.finditer(text, imprints[0][1])] if imprints else []
    yield from _outside_books(text, starts, ends, begins_file)
    yield from _outside_books(text, imprints, colophons, False)


def _outside_books(text: str, starts: Spans, ends: Sequence[int], begins_file: bool) -> Iterator[Boilerplate]:
    """From the end of each book to the start of the next one, and from the beginning of a file to the first."""

    def after_book(start: int) -> Iterator[Boilerplate]:
        """Up to the last words of the license, or up to the end of the text if that is near."""
        last_words = LICENSE_END.search(text, start, start + MAX_NOTICE_CHARS)
        end = last_words.end() if last_words else len(text)
        if start and end - start <= MAX_NOTICE_CHARS:
            yield Boilerplate("publisher notice", start, end)

    opened = 0 if begins_file else None
    for place, after in sorted([*starts, *((end, 0) for end in ends)]):
        if not after:
            opened = opened or place
            continue
        before = place if opened is None else opened
        if place - before > MAX_NOTICE_CHARS:  # another text is between the books
            yield from after_book(before)
            before = place
        yield Boilerplate("publisher notice", before, after)
        opened = None
    if opened:
        yield from after_book(opened)


def _lines(text: str, pattern: re.Pattern[str], *bounds: int) -> Iterator[Line]:
    return (Line(match.start(), match.end(), match[0].strip()) for match in pattern.finditer(text, *bounds))


def _contents(text: str) -> Iterator[Boilerplate]:
    """Tables of contents: a heading, then lines that are headings of the text, or end with page numbers."""
    tables = {match.start(): _entries(text, match) for match in CONTENTS.finditer(text)}
    names = {name for entries in tables.values() for entry in entries for name in _entry_names(entry.text)}
    lines = _lines(text, LINE) if names else iter(())
    counts = Counter(name for line in lines if (name := _entry_name(line.text)) in names)

    for heading, candidates in tables.items():
        entries = []
        for line in candidates:
            own, title = _entry_names(line.text)  # a heading if its words are a line of the text, too
            is_heading = counts[own] > 1 or (title not in ("", own) and counts[title] > 0)
            if not (is_heading or NUMBERED.match(line.text) or PAGE_AT_END.search(line.text)):
                break
            entries.append(line)
        if len(entries) >= MIN_ENTRIES:
            yield Boilerplate("table of contents", heading, entries[-1].end)


def _entries(text: str, heading: re.Match[str]) -> list[Line]:
    """The short lines after a heading that may be its entries.

    They end at a line that is there already, so that no line is listed for two headings of the same words, and at
    the heading of a chapter that is listed with its title: 'CHAPTER I.' after 'CHAPTER I. Down the Rabbit-Hole'.
    """
    entries: list[Line] = []
    names = {_entry_name(heading[0])}
    for line in islice(_lines(text, LINE, heading.end()), MAX_ENTRIES):
        number = line.text.rstrip(" .:\u2014-")
        rests = (entry.text[len(number) :] for entry in entries if entry.text.startswith(number))
        is_chapter = NUMBERED.match(line.text) and any(rest and not rest[0].isalnum() for rest in rests)
        if len(line.text) > ENTRY_CHARS or _entry_name(line.text) in names or is_chapter:
            break
        names.update(_entry_names(line.text))
        entries.append(line)
    return entries


def _entry_name(line: str) -> str:
    """The letters and digits of a line, without the page number at its end."""
    return re.sub(r"[\W_]+", "", PAGE_AT_END.sub("", line)).casefold()


def _entry_names(line: str) -> tuple[str, str]:
    """The name of a line with its number, and without it: the number may be a line of its own in the text."""
    return _entry_name(line), _entry_name(ENTRY_NUMBER.sub("", line))


def _headings(text: str, lines: Sequence[Line]) -> Iterator[Boilerplate]:
    """Page headings: the same words with a growing page number before or after them."""
    by_words: dict[str, list[tuple[int, Line]]] = defaultdict(list)
    for line in lines:
        if len(line.text) > MAX_HEADING_CHARS or not (heading := HEADING.match(line.text)):
            continue
        words = LETTERS.sub("", heading["after"] or heading["before"]).casefold()
        if len(words) >= MIN_HEADING_LETTERS and not NUMBERED.match(line.text):
            by_words[words].append((int(heading["first"] or heading["last"]), line))
    for pages in by_words.values():
        if len(pages) < MIN_HEADINGS:
            continue
        numbers = [number for number, _ in pages]
        # The longest growing series, by patience sorting: of those of each length, the smallest last number.
        smallest_last: list[int] = []
        for number in numbers:
            place = bisect_left(smallest_last, number)
            smallest_last[place : place + 1] = [number]
        grow = len(smallest_last) >= (GROWING_IN_A_SCAN if len(pages) >= MANY_PAGES else GROWING) * len(pages)
        # Numbers of pages are no farther apart than pages are.
        chars = pages[-1][1].start - pages[0][1].start
        are_near = chars <= MAX_PAGE_CHARS * (max(numbers) - min(numbers))
        if grow and are_near and _divide_text(text, [line for _, line in pages]):
            yield from (Boilerplate("page heading", line.start, line.end) for _, line in pages)


def _page_numbers(text: str, lines: Sequence[Line]) -> Iterator[Boilerplate]:
    """Lines with nothing but a page number: each one more than the last, and pages of about the same length."""
    pages = [(int(page[1]), line) for line in lines if (page := PAGE_NUMBER.fullmatch(line.text))]
    lengths = [b.start - a.start for (_, a), (_, b) in pairwise(pages)]
    one_more = sum(b == a + 1 for (a, _), (b, _) in pairwise(pages))
    if len(pages) < MIN_PAGES or one_more < 0.9 * len(lengths) or pstdev(lengths) > MAX_SPREAD * mean(lengths):
        return
    if mean(lengths) <= MAX_PAGE_CHARS and _divide_text(text, [line for _, line in pages]):
        yield from (Boilerplate("page number", line.start, line.end) for _, line in pages)


def _divide_text(text: str, lines: Sequence[Line]) -> bool:
    """Whether lines are as far apart as pages are, and some are inside a sentence; all others are the author's."""
    befores = (text[max(0, line.start - SEARCHED_CHARS) : line.start].rstrip() for line in lines)
    inside = sum(bool(before) and not before.endswith(SENTENCE_ENDS) for before in befores)
    is_far = lines[-1].start - lines[0].start >= MIN_PAGE_CHARS * (len(lines) - 1)
    return is_far and inside >= DIVIDING_SHARE * len(lines)


def join_wrapped_lines(text: str, width: int) -> str:
    """The text with the lines of each paragraph of wrapped prose joined; all other lines stay."""
    words = find_words([text])
    stretches = (split_lines(text[start:end]) for start, end in split_stretches(text))
    return "".join(_join_lines(lines, width, words) for lines in stretches)


def _join_lines(lines: Lines, width: int, words: Collection[str]) -> str:
    tagged = np.array([is_tagged(line) for line in lines.texts]) & ~lines.small  # a colon in prose is no tag
    group, _, _ = find_wrapped(lines)
    # A paragraph begins at a line that is indented further than others of its group.
    indents = np.array([len(line) - len(line.lstrip()) for line in lines.texts])
    least = np.full(group[-1] + 1, WIDEST_LINE)
    np.minimum.at(least, group, np.where(lines.blank, WIDEST_LINE, indents))
    begins_paragraph = indents > least[group]
    continued = find_continued(lines, tagged) & ~np.append(begins_paragraph[1:], True)
    continued &= ~np.array([CELLS.search(line) is not None for line in lines.texts])
    # A line ends because the next word did not fit, exactly or, in a group that is wrapped raggedly, about there.
    next_words = np.array([*map(first_word_length, lines.texts[1:]), 0])
    is_full = lines.lengths + 1 + next_words > width
    is_wrapped = np.bincount(group, find_full_lines(lines, continued)) > 0
    joined = continued & (is_full | (is_wrapped[group] & (lines.lengths >= MIN_WIDTH * width)))
    pieces = list[str]()
    for number, line in enumerate(lines.texts):
        line = line.lstrip() if number and joined[number - 1] else line
        if joined[number]:
            line, next_line = line.rstrip(), lines.texts[number + 1].lstrip()
            # Nothing behind a hyphen or a dash inside a word, and in scripts that are written without spaces.
            is_known = has_hyphen(line, next_line, words) if line.endswith("-") else None
            is_suspended = HYPHEN_AT_END.search(line) and is_known is None and SUSPENDED.match(next_line)
            is_divided = HYPHENATED.search(line) and not is_suspended
            gap = "" if is_divided else joint(line, next_line)
            if is_known is False:
                line = line[:-1]
            pieces += [line, gap]
        else:
            pieces += [line, "\n"]
    return "".join(pieces[:-1])
