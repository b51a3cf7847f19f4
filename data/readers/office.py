"""Word documents (.docx) and OpenDocument texts (.odt) to paragraphs, without deletions, notes and comments."""

from __future__ import annotations

import re
import zipfile
from collections.abc import Container, Iterator
from typing import Any, BinaryIO

from ...core.errors import DataError
from .documents import INVISIBLE, Paragraph

W = "{http://schemas.openxmlformats.org/wordprocessingml/2006/main}"
CHARACTER_TAGS = {W + "br": "\n", W + "tab": "\t", W + "cr": "\n", W + "noBreakHyphen": "-"}
SKIPPED_IN_WORD = frozenset({W + "del", W + "moveFrom", W + "txbxContent", W + "pPr", W + "rPr", W + "rt"})
MATH = "{http://schemas.openxmlformats.org/officeDocument/2006/math}oMath"
NO_TEXT_IN_WORD = (W + "drawing", W + "pict", W + "object", W + "del", W + "moveFrom", MATH)
HEADING = re.compile(r"heading ([1-9])", re.IGNORECASE)
TITLE_LEVELS = {"title": 8, "subtitle": 9}  # headings that divide nothing

NAMESPACE = "{urn:oasis:names:tc:opendocument:xmlns:%s:1.0}"
TEXT, TABLE, OFFICE, STYLE, DRAW = (NAMESPACE % part for part in ("text", "table", "office", "style", "drawing"))
BREAK_BEFORE = (NAMESPACE % "xsl-fo-compatible") + "break-before"
SKIPPED_IN_ODT = frozenset(
    {TEXT + "note", TEXT + "tracked-changes", TEXT + "ruby-text", OFFICE + "annotation", DRAW + "frame"}
)


def read_docx(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """The text of a Word document, headings with their levels; a page break begins a part."""
    import docx

    if stream.read(8).startswith(b"\xd0\xcf\x11\xe0"):
        raise DataError(
            f"{name} is in the old Word format or protected by a password. Save it as .docx without a password."
        )
    document = docx.Document(stream)
    styles = {style.style_id: style.name or "" for style in document.styles}
    return list(_read_word_body(document.element.body, styles)), ()


def _read_word_body(body: Any, styles: dict[str, str]) -> Iterator[Paragraph]:
    """Paragraphs in the order of the document; a row of a table is a line."""
    page_break = False
    for element in outermost(body, (W + "p", W + "tr"), SKIPPED_IN_WORD):
        if element.tag == W + "tr":
            cells = []
            for cell in outermost(element, (W + "tc",), SKIPPED_IN_WORD):
                texts = (_word_text(each).strip() for each in outermost(cell, (W + "p",), SKIPPED_IN_WORD))
                cells.append(" ".join(filter(None, texts)))
            yield Paragraph("\t".join(cells), 0, page_break, True)
            page_break = False
            continue
        text, properties = _word_text(element), f"{W}pPr/{W}"
        before = element.find(f"{properties}pageBreakBefore")
        has_break = before is not None and before.get(W + "val") not in ("0", "false")
        has_break = has_break or any(br.get(W + "type") == "page" for br in element.iter(W + "br"))
        break_before = has_break and (not text.strip() or text.startswith("\f"))
        style = element.find(f"{properties}pStyle")
        style_name = styles.get(style.get(W + "val"), "") if style is not None else ""
        heading = HEADING.match(style_name)
        level = int(heading[1]) if heading else TITLE_LEVELS.get(style_name.lower(), 0)
        is_item = element.find(f"{properties}numPr") is not None
        picture = next(element.iter(*NO_TEXT_IN_WORD), None) is not None
        yield Paragraph(text.replace("\f", "\n"), level, page_break or break_before, is_item, picture=picture)
        page_break = (has_break and not break_before) or element.find(f"{properties}sectPr") is not None


def _word_text(paragraph: Any) -> str:
    r"""The text of a paragraph; a page break becomes \f."""
    parts: list[str] = []
    for element in outermost(paragraph, (W + "t", *CHARACTER_TAGS), SKIPPED_IN_WORD):
        if element.tag == W + "t":
            parts.append(element.text or "")
        else:
            is_page_break = element.tag == W + "br" and element.get(W + "type") == "page"
            parts.append("\f" if is_page_break else CHARACTER_TAGS[element.tag])
    return "".join(parts).translate(INVISIBLE)


def outermost(root: Any, tags: Container[str], skipped: Container[str]) -> Iterator[Any]:
    """The elements of a document with these tags, without those inside another one of them or a skipped one."""
    # A stack of our own: elements may be nested more deeply than Python allows a recursion to be.
    stack = list(reversed(root))
    while stack:
        element = stack.pop()
        if element.tag in tags:
            yield element
        elif element.tag not in skipped:
            stack += reversed(element)


def read_odt(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """The text of an OpenDocument text, headings with their levels; a page break before one begins a part."""
    from lxml import etree

    # Entities may name files or swell a thousandfold, and no address may be opened.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, remove_comments=True, remove_pis=True)
    manifest = "META-INF/manifest.xml"
    with zipfile.ZipFile(stream) as archive:
        if manifest in archive.namelist() and b"encryption-data" in archive.read(manifest):
            raise DataError(f"{name} is protected by a password. Save it without a password.")
        root = etree.fromstring(archive.read("content.xml"), parser)
    body = root.find(f"{OFFICE}body/{OFFICE}text")
    if body is None:
        raise DataError(
            f"{name} is an OpenDocument spreadsheet or drawing, not a text document. Save its text as a .txt file."
        )
    break_styles = frozenset(
        style.get(STYLE + "name", "")
        for style in root.iter(STYLE + "style")
        for properties in style.iter(STYLE + "paragraph-properties")
        if properties.get(BREAK_BEFORE) == "page"
    )
    return list(_read_odt_body(body, break_styles)), ()


def _read_odt_body(body: Any, break_styles: frozenset[str]) -> Iterator[Paragraph]:
    """Paragraphs in the order of the document; list items and table rows are lines."""
    texts = (TEXT + "p", TEXT + "h")
    for element in outermost(body, (*texts, TABLE + "table-row"), SKIPPED_IN_ODT):
        if element.tag in texts:
            page_break = element.get(TEXT + "style-name") in break_styles
            level = int(element.get(TEXT + "outline-level", "1")) if element.tag == TEXT + "h" else 0
            is_item = next(element.iterancestors(TEXT + "list-item"), None) is not None
            picture = next(element.iter(DRAW + "frame"), None) is not None
            yield Paragraph(_odt_text(element), level, page_break, is_item, picture=picture)
        else:
            cells = []
            for cell in outermost(element, (TABLE + "table-cell",), SKIPPED_IN_ODT):
                own = (_odt_text(each).strip() for each in outermost(cell, texts, SKIPPED_IN_ODT))
                cells.append(" ".join(filter(None, own)))
            yield Paragraph("\t".join(cells), line=True)


def _odt_text(paragraph: Any) -> str:
    """The text of a paragraph; repeated spaces, tabs and line breaks are elements of their own."""
    parts: list[str] = []
    stack: list[Any] = [paragraph]
    while stack:
        part = stack.pop()
        if isinstance(part, str):
            parts.append(" ".join(part.split("\n")))  # line ends in the file are spaces
        elif part.tag == TEXT + "s":
            parts.append(" " * int(part.get(TEXT + "c", "1")))
        elif part.tag in (TEXT + "tab", TEXT + "line-break"):
            parts.append("\t" if part.tag == TEXT + "tab" else "\n")
        elif isinstance(part.tag, str) and part.tag not in SKIPPED_IN_ODT:
            contents: list[Any] = [part.text or ""]
            for child in part:
                contents += [child, child.tail or ""]
            stack += reversed(contents)
    return "".join(parts).translate(INVISIBLE)
