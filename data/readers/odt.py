"""OpenDocument texts (.odt) to paragraphs, without notes, comments and deletions."""

from __future__ import annotations

import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import text_files
from .paragraphs import Paragraph, outermost

NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, OFFICE, STYLE, DRAW = (NAMESPACE % part for part in ("text", "table", "office", "style", "drawing"))
BREAK_BEFORE = (NAMESPACE % "xsl-fo-compatible") + "break-before"
SKIPPED_TAGS = frozenset(
    {TEXT + "note", TEXT + "tracked-changes", TEXT + "ruby-text", OFFICE + "annotation", DRAW + "frame"}
)
REPAIR_HINT = "Open it in LibreOffice and save it again, or save its text as a .txt file."
MAX_DIGITS = 100  # more are no count of anything, and Python refuses to read them
DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, NotImplementedError, RuntimeError)


def read_paragraphs(path: Path, name: str) -> list[Paragraph]:
    """The text of the document, headings with their levels; a page break before a paragraph begins a part."""
    lxml = text_files.import_library("lxml.etree", "lxml", name, "an OpenDocument text document")
    parser = lxml.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    try:
        root = lxml.fromstring(_read_content(path, name), parser)
    except (*DAMAGE_ERRORS, lxml.LxmlError) as error:
        raise DataError(
            f"{name} is not a valid OpenDocument text document ({text_files.short_message(error)}). {REPAIR_HINT}"
        ) from error
    body = root.find(f"{OFFICE}body/{OFFICE}text")
    if body is None:
        raise DataError(f"{name} is an OpenDocument spreadsheet or drawing, not a text document. {REPAIR_HINT}")
    return list(_read_body(body, _break_styles(root)))


def _read_content(path: Path, name: str) -> bytes:
    with text_files.open_binary(path, name) as stream, zipfile.ZipFile(stream) as archive:
        if "META-INF/manifest.xml" in archive.namelist() and b"encryption-data" in archive.read(
            "META-INF/manifest.xml"
        ):
            raise DataError(f"{name} is protected by a password. Save it without a password.")
        text_files.refuse_huge(archive.getinfo("content.xml").file_size, name, REPAIR_HINT)
        return archive.read("content.xml")


def _break_styles(root: Any) -> frozenset[str]:
    """The styles with a page break before the paragraph."""
    return frozenset(
        style.get(STYLE + "name", "")
        for style in root.iter(STYLE + "style")
        for properties in style.iter(STYLE + "paragraph-properties")
        if properties.get(BREAK_BEFORE) == "page"
    )


def _read_body(body: Any, break_styles: frozenset[str]) -> Iterator[Paragraph]:
    """Paragraphs in the order of the document; list items and table rows are lines."""
    stack = [(element, False) for element in reversed(body)]
    while stack:
        element, is_item = stack.pop()
        if element.tag in (TEXT + "p", TEXT + "h"):
            page_break = element.get(TEXT + "style-name") in break_styles
            yield Paragraph(_paragraph_text(element), _heading_level(element), page_break, is_item)
        elif element.tag == TABLE + "table-row":
            yield Paragraph(
                "\t".join(map(_cell_text, outermost(element, (TABLE + "table-cell",), SKIPPED_TAGS))), line=True
            )
        elif element.tag not in SKIPPED_TAGS:
            stack += [(child, is_item or element.tag == TEXT + "list-item") for child in reversed(element)]


def _heading_level(element: Any) -> int:
    level = element.get(TEXT + "outline-level", "1") if element.tag == TEXT + "h" else "0"
    return _small_number(level)


def _small_number(digits: str) -> int:
    """A count or a level, at most 1000; 1 where it is no number."""
    if not digits.isdecimal():
        return 1
    return min(int(digits), 1000) if len(digits) <= MAX_DIGITS else 1000


def _cell_text(cell: Any) -> str:
    paragraphs = outermost(cell, (TEXT + "p", TEXT + "h"), SKIPPED_TAGS)
    return " ".join(text for p in paragraphs if (text := _paragraph_text(p).strip()))


def _paragraph_text(paragraph: Any) -> str:
    """The text of a paragraph; repeated spaces, tabs and line breaks are elements of their own."""
    parts: list[str] = []
    stack = _reversed_contents(paragraph)
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            parts.append(part)
        elif part.tag == TEXT + "s":
            parts.append(" " * _small_number(part.get(TEXT + "c", "1")))
        elif part.tag in (TEXT + "tab", TEXT + "line-break"):
            parts.append("\t" if part.tag == TEXT + "tab" else "\n")
        elif isinstance(part.tag, str) and part.tag not in SKIPPED_TAGS:
            stack += _reversed_contents(part)
    return "".join(parts)


def _reversed_contents(element: Any) -> list[Any]:
    """Texts and child elements of an element in reverse order; line ends in the texts are spaces."""
    contents: list[Any] = [element.text or ""]
    for child in element:
        contents += [child, child.tail or ""]
    return [" ".join(part.split("\n")) if isinstance(part, str) else part for part in reversed(contents)]
