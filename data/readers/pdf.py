"""PDF documents to paragraphs: lines joined, running heads and page numbers removed, chapters by the outline."""

from __future__ import annotations

import importlib
import re
from collections import Counter, defaultdict
from collections.abc import Iterator, Mapping, Sequence
from itertools import islice
from typing import Any, BinaryIO

from ...core.errors import DataError
from ...train_utils import format_count
from ..hyphens import SUSPENDED, find_words, has_hyphen
from ..unspaced import is_unspaced, join_unspaced, joint
from .documents import Paragraph

MIN_PAGES = 4  # fewer are not searched for running headers and footers
MIN_PROSE_CHARS = 60  # of a paragraph; headings and captions are shorter
MIN_TITLE_CHARS = 5  # without spaces: of a part of a title in the outline, and of its number
MIN_UNSPACED_CHARS = 30  # of a paragraph in Chinese or Japanese
SENTENCE_ENDINGS = tuple(".!?…:;\"'”’»)]。！？」』")
# Text layers of scans have a space behind each word.
HYPHENATED = re.compile(r"([\w-]*\w)[-\u00ad\u2010][ \t]*\n(?=([a-zß-öø-ÿ]\w*))")


def read_pdf(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """The text of the document, page by page, and a note where the file had to be repaired."""
    pymupdf: Any = importlib.import_module("pymupdf")
    pymupdf.TOOLS.mupdf_display_errors(False)  # MuPDF would print its errors
    with pymupdf.open(stream.name, filetype="pdf") as document:
        if document.needs_pass:
            raise DataError(f"{name} is protected by a password. Save a copy without a password.")
        flags = pymupdf.TEXT_PRESERVE_WHITESPACE | pymupdf.TEXT_MEDIABOX_CLIP | pymupdf.TEXT_PARAGRAPH_BREAK
        # Of a block, 4 is its text and 6 its kind: 0 is text, 1 a picture.
        blocks = (page.get_text("blocks", flags=flags) for page in document)
        pages = [[block[4] for block in page if block[6] == 0] for page in blocks]
        if not any(text.strip() for page in pages for text in page):
            raise DataError(
                f"{name} has only images and no text ({format_count(len(pages), 'page')}). Run it through a text "
                "recognition (OCR) program first."
            )
        chapters = defaultdict[int, list[str]](list)  # the titles that begin on each page
        for level, title, page, *_ in document.get_toc():
            if level == 1:
                chapters[page - 1].append(title)
        if sum(map(len, chapters.values())) < 2:  # a title alone divides nothing
            chapters.clear()
        repaired = (
            f"{name} is damaged. Its text was recovered as far as possible, and the file was not changed. Check "
            "that no text is missing."
        )
        notes = (repaired,) if document.is_repaired else ()
        return list(_join_blocks(_remove_running_heads(pages), chapters)), notes


def _remove_running_heads(pages: Sequence[list[str]]) -> list[list[str]]:
    """Pages without the texts that stand first or last on most of them, or of the left or right ones.

    Digits are disregarded.
    """

    def key(text: str) -> str:
        return re.sub(r"[\d\s.·|/–—-]+", " ", text).strip().lower()

    stripped = [[text for text in page if text.strip()] for page in pages]
    if len(pages) < MIN_PAGES:
        return [[text for text in page if not text.strip().isdigit()] for page in stripped]
    repeated = {""}
    for side in (stripped, stripped[::2], stripped[1::2]):
        edges = Counter(each for page in side for each in {key(text) for text in (page[:1] + page[-1:])})
        repeated |= {each for each, count in edges.items() if count > max(2, len(side) / 2)}
    return [
        [text for n, text in enumerate(page) if not (n in (0, len(page) - 1) and key(text) in repeated)]
        for page in stripped
    ]


def _join_blocks(pages: Sequence[list[str]], chapters: Mapping[int, Sequence[str]]) -> Iterator[Paragraph]:
    """Blocks as paragraphs; a paragraph that continues on the next page is joined."""
    words = find_words(block for page in pages for block in page)

    def whole(part: re.Match[str]) -> str:
        is_known = has_hyphen(part[1], part[2], words)
        if is_known is None and SUSPENDED.match(part[2]):
            return part[0]
        return part[1] + ("-" if is_known else "")

    pending: Paragraph | None = None
    for number, page in enumerate(pages):
        begins = _chapter_starts(page, chapters.get(number, ()))
        for position, block in enumerate(page):
            text = re.sub(r"\s+", " ", join_unspaced(HYPHENATED.sub(whole, block.strip()))).strip()
            starts_chapter = position in begins
            if number in chapters and not begins and not position:  # no title is on the page: at its top
                starts_chapter = not pending or not _is_continued(pending.text, text)
            if pending and not position and not starts_chapter and _is_continued(pending.text, text):
                joined = HYPHENATED.sub(whole, f"{pending.text}\n{text}")
                if "\n" in joined:
                    joined = pending.text + joint(pending.text, text) + text
                pending = pending._replace(text=joined)
                continue
            if pending:
                yield pending
            pending = Paragraph(text, 0, starts_chapter)
    if pending:
        yield pending


def _chapter_starts(page: Sequence[str], titles: Sequence[str]) -> set[int]:
    """The blocks of a page that begin with these titles of the outline, which may have a number more or less."""
    blocks = [re.sub(r"[\W_]+", "", block).casefold() for block in page]
    found = set[int]()
    for title in (re.sub(r"[\W_]+", "", title).casefold() for title in titles):
        lengths = range(min(len(title), MIN_TITLE_CHARS), len(title) + MIN_TITLE_CHARS)
        places = (
            n for n, block in enumerate(blocks) if len(block) in lengths and (block in title or title in block)
        )
        for place in islice(places, 1):
            # "Chapter 2" stands above its title.
            has_head = (
                place and re.search(r"[^\W\d_]", blocks[place - 1]) and len(blocks[place - 1]) < MIN_PROSE_CHARS
            )
            found.add(place - bool(has_head and not page[place - 1].rstrip().endswith(SENTENCE_ENDINGS)))
    return found


def _is_continued(text: str, following: str) -> bool:
    """Whether the last text of a page stops inside a sentence; the next page may begin with a name."""
    if text.endswith(SENTENCE_ENDINGS):
        return False
    is_inside = text.rstrip(",，、")[-1:].isalpha()
    if is_unspaced(text[-1:]):
        return is_inside and is_unspaced(following[:1]) and len(text) >= MIN_UNSPACED_CHARS
    in_prose = is_inside and min(len(text), len(following)) >= MIN_PROSE_CHARS
    return following[:1].islower() or (in_prose and following[:1].isupper())
