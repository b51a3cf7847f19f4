"""Word documents (.docx) to paragraphs: all text, tracked insertions included, deletions not."""

from __future__ import annotations

import re
import zipfile
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import text_files
from .paragraphs import Paragraph, outermost

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
CHARACTER_TAGS = {W + "tab": "\t", W + "cr": "\n", W + "noBreakHyphen": "-"}
SKIPPED_TAGS = frozenset({W + "del", W + "moveFrom", W + "txbxContent", W + "pPr", W + "rPr"})
HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
DAMAGE_ERRORS = (zipfile.BadZipFile, zlib.error, EOFError, KeyError, ValueError, AttributeError, RuntimeError)
TITLE_LEVELS = {"title": 8, "subtitle": 9}  # headings that divide nothing
REPAIR_HINT = "Open it in Word or LibreOffice and save it again, or save its text as a .txt file."


def read_paragraphs(path: Path, name: str) -> list[Paragraph]:
    """The text of the document, headings with their levels; a page break begins a part."""
    docx = text_files.import_library("docx", "python-docx", name, "a Word document")
    lxml = text_files.import_library("lxml.etree", "lxml", name, "a Word document")
    _refuse_huge(path, name)
    try:
        with text_files.open_binary(path, name) as stream:
            document = docx.Document(stream)
            styles = {style.style_id: style.name or "" for style in document.styles}
            return list(_read_body(document.element.body, styles))
    except (*DAMAGE_ERRORS, lxml.LxmlError, docx.opc.exceptions.OpcError) as error:
        raise DataError(
            f"{name} is not a valid Word document ({text_files.short_message(error)}). {REPAIR_HINT}"
        ) from error


def _refuse_huge(path: Path, name: str) -> None:
    with text_files.open_binary(path, name) as stream:
        head = stream.read(8)
        if head.startswith(b"\xd0\xcf\x11\xe0"):
            raise DataError(
                f"{name} is in the old Word format or protected by a password. Save it as .docx without a "
                "password."
            )
        try:
            size = sum(part.file_size for part in zipfile.ZipFile(stream).infolist())
        except (zipfile.BadZipFile, ValueError, NotImplementedError) as error:
            raise DataError(
                f"{name} is not a valid Word document ({text_files.short_message(error)}). {REPAIR_HINT}"
            ) from error
    text_files.refuse_huge(size, name, REPAIR_HINT)


def _read_body(body: Any, styles: dict[str, str]) -> Iterator[Paragraph]:
    """Paragraphs in the order of the document; a row of a table is a line."""
    page_break = False
    for element in outermost(body, (W + "p", W + "tr"), SKIPPED_TAGS):
        if element.tag == W + "tr":
            yield Paragraph(
                "\t".join(map(_cell_text, outermost(element, (W + "tc",), SKIPPED_TAGS))), 0, page_break, True
            )
            page_break = False
            continue
        text, has_break = _paragraph_text(element), _has_page_break(element)
        break_before = has_break and (not text.strip() or text.startswith("\f"))
        is_item = element.find(f"{W}pPr/{W}numPr") is not None
        yield Paragraph(
            text.replace("\f", "\n"), _heading_level(element, styles), page_break or break_before, is_item
        )
        page_break = (has_break and not break_before) or element.find(f"{W}pPr/{W}sectPr") is not None


def _cell_text(cell: Any) -> str:
    paragraphs = outermost(cell, (W + "p",), SKIPPED_TAGS)
    return " ".join(text for p in paragraphs if (text := _paragraph_text(p).strip()))


def _paragraph_text(paragraph: Any) -> str:
    r"""The text of a paragraph; a page break becomes \f."""
    parts: list[str] = []
    stack = list(reversed(paragraph))
    while stack:
        element = stack.pop()
        if element.tag == W + "t":
            parts.append(element.text or "")
        elif element.tag == W + "br":
            parts.append("\f" if element.get(W + "type") == "page" else "\n")
        elif element.tag in CHARACTER_TAGS:
            parts.append(CHARACTER_TAGS[element.tag])
        elif element.tag not in SKIPPED_TAGS:
            stack += reversed(element)
    return "".join(parts)


def _has_page_break(paragraph: Any) -> bool:
    """Whether a page ends in a paragraph or before it."""
    before = paragraph.find(f"{W}pPr/{W}pageBreakBefore")
    if before is not None and before.get(W + "val") not in ("0", "false"):
        return True
    return any(br.get(W + "type") == "page" for br in paragraph.iter(W + "br"))


def _heading_level(paragraph: Any, styles: dict[str, str]) -> int:
    style = paragraph.find(f"{W}pPr/{W}pStyle")
    style_name = styles.get(style.get(W + "val"), "") if style is not None else ""
    heading = HEADING.match(style_name)
    return int(heading[1]) if heading else TITLE_LEVELS.get(style_name.lower(), 0)
