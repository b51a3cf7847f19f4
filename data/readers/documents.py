"""Documents other than plain text: their readers by suffix, and their paragraphs as one text.

A reader returns the paragraphs of a file, and notes on the reading.
"""

from __future__ import annotations

import importlib
import math
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import zip_longest
from pathlib import Path
from typing import Any, NamedTuple

from ...core.errors import DataError
from . import text_files
from .reader_process import read_item

# What a document is, the function that reads it, and a program that may mend it.
READERS: Mapping[str, tuple[str, str, str]] = {
    ".html": ("a web page", "html:read_page", "a browser"),
    ".htm": ("a web page", "html:read_page", "a browser"),
    ".epub": ("an e-book", "html:read_epub", "Calibre"),
    ".pdf": ("a PDF document", "pdf:read_pdf", "a PDF reader"),
    ".docx": ("a Word document", "office:read_docx", "Word or LibreOffice"),
    ".odt": ("an OpenDocument text document", "office:read_odt", "LibreOffice"),
    ".srt": ("a subtitle file", "subtitles:read_subtitles", "a text editor"),
    ".vtt": ("a subtitle file", "subtitles:read_subtitles", "a text editor"),
}
INVISIBLE = dict.fromkeys((0xAD, 0x2060, 0xFEFF))  # where a word may or must not be divided: no part of the text


def read_document(path: Path, name: str, hard_cut: str) -> text_files.LoadedText:
    """A document's text, with hard cuts between its chapters; a DataError says why it has none."""
    text, notes, menus = read_item("documents.extract_text", path, name, hard_cut)
    return text_files.LoadedText(name, text, tuple(notes), menus=tuple((start, end) for start, end in menus))


def extract_text(path: str, name: str, hard_cut: str) -> Iterator[tuple[str, tuple[str, ...], tuple[Any, ...]]]:
    """A document's text, notes on the reading, and its menus, as the only item; called in the reader process."""
    file = Path(path)
    description, reader, program = READERS[file.suffix.lower()]
    module, _, function = reader.partition(":")
    read = getattr(importlib.import_module(f".{module}", __package__), function)
    try:
        with text_files.open_binary(file, name) as stream:
            paragraphs, notes = read(stream, name)
    except (DataError, ImportError, MemoryError, RecursionError):  # these have sentences of their own
        raise
    except Exception as error:  # whatever the libraries raise over a damaged file
        message = " ".join(str(error).split())[:120] or type(error).__name__
        raise DataError(
            f"{name} can't be read as {description} ({message}). Open it in {program} and save it again, or save "
            "its text as a .txt file."
        ) from error
    text, parts, menus = join_paragraphs(paragraphs, hard_cut)
    if not text.strip():
        raise DataError(f"{name} is {description} without any text. Remove it from the dataset.")
    chapters = ""
    if parts > 1:  # how many sections there are only the slicer knows: the text may have hard cuts of its own
        separated = "Hard cuts separate its chapters."
        chapters = f" {separated if hard_cut else 'Its chapters are not separated, because Hard cut is empty.'}"
    yield text, (*notes, f"{name} was read as {description}.{chapters}"), menus


class Paragraph(NamedTuple):
    """A paragraph of a document. `level` is that of a heading, 0 for text; with `cut`, a part begins here."""

    text: str
    level: int = 0
    cut: bool = False
    line: bool = False  # an item of a list or a row of a table: no blank line between two of them
    menu: bool = False  # navigation of a web page
    links: int = 0  # of a web page, in a paragraph without other words
    picture: bool = False  # or something else that is no text, so it is no empty line


def join_paragraphs(
    paragraphs: Sequence[Paragraph], hard_cut: str
) -> tuple[str, int, tuple[tuple[int, int], ...]]:
    """Paragraphs joined by blank lines, and chapters by the hard cut; the text, its parts, and its menus."""
    filled: list[Paragraph] = []
    cut, blank, blanks_that_cut = False, 0, math.inf if hard_cut.strip("\n") else max(2, hard_cut.count("\n") - 1)
    for paragraph in paragraphs:
        cut = cut or paragraph.cut  # a cut before a blank paragraph moves to the next one
        if not paragraph.text.strip():
            blank = 0 if paragraph.picture or paragraph.line else blank + 1
            continue
        cut = cut or blank >= blanks_that_cut  # the author's own, as in a text file
        filled.append(paragraph._replace(text=paragraph.text.strip("\n"), cut=cut))
        cut, blank = False, 0
    # Chapters begin at the first level of heading that occurs more than once: a title alone divides nothing.
    levels = Counter(paragraph.level for paragraph in filled if paragraph.level)
    chapter_level = min((level for level, count in levels.items() if count > 1), default=0)
    parts: list[list[Paragraph]] = []
    only_headings = True  # in the part so far: 'Part One', then 'Chapter 1'
    for paragraph in filled:
        if paragraph.cut or not parts or (0 < paragraph.level <= chapter_level and not only_headings):
            parts.append([])
            only_headings = True
        parts[-1].append(paragraph)
        only_headings = only_headings and paragraph.level > 0
    pieces, menus, place = list[str](), list[tuple[int, int]](), 0
    for part in parts:
        if place:
            pieces.append(hard_cut or "\n\n")
            place += len(pieces[-1])
        for first, second in zip_longest(part, part[1:]):
            gap = "" if second is None else "\n" if first.line and second.line else "\n\n"
            pieces.append(first.text + gap)
            end = place + len(pieces[-1])
            if first.menu:
                if menus and menus[-1][1] == place:
                    menus[-1] = (menus[-1][0], end)  # paragraphs of a menu that follow each other are one
                else:
                    menus.append((place, end))
            place = end
    return "".join(pieces), len(parts), tuple(menus)
