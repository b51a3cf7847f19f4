"""Web pages, and e-books (archives of pages), to paragraphs: the visible text without scripts and styles."""

from __future__ import annotations

import codecs
import posixpath
import re
import zipfile
from collections.abc import Mapping
from contextlib import suppress
from itertools import groupby
from typing import Any, BinaryIO
from urllib.parse import unquote

from ...core.errors import DataError
from ..unspaced import join_unspaced
from . import text_files
from .documents import INVISIBLE, Paragraph

SKIPPED_TAGS = {
    *("head", "title", "script", "style", "template", "noscript", "frameset", "applet", "object", "iframe"),
    *("svg", "math", "canvas", "audio", "video", "map", "datalist", "select", "textarea"),
    *("rp", "rt"),  # ruby: the pronunciation above characters, not part of the sentence
}
BLOCK_TAGS = {
    *("html", "body", "p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "center", "hr"),
    *("ul", "ol", "dl", "li", "dt", "dd", "table", "caption", "thead", "tbody", "tfoot", "tr"),
    *("section", "article", "aside", "header", "footer", "nav", "main", "figure", "figcaption", "address"),
    *("form", "fieldset", "details", "summary"),
}
LINE_TAGS = frozenset({"li", "dt", "dd", "tr"})
FRAME_TAGS = frozenset({"header", "footer", "aside", "address"})  # of the page; in its content they are text
CONTENT_TAGS = frozenset({"main", "article", "section"})
MENU_CLASSES = frozenset({"nav", "navigation", "navbar", "breadcrumb", "breadcrumbs", "pagination"})
# Marks of notes and page numbers, in the middle of sentences: of e-books, of Gutenberg's pages, of Wikipedia.
MARK_TYPES = frozenset({"backlink", "doc-backlink", "pagebreak", "doc-pagebreak"})
NOTE_TYPES = frozenset({"noteref", "doc-noteref"})
MARK_CLASSES = frozenset({"pagenum", "pageno", "fnanchor", "mw-editsection"})
MIN_LINKS, MIN_LINK_LINES = 2, 3  # of a menu without a mark: links in one line, or lines, without other words
WORD = re.compile(r"[^\W\d_]{3}")
HEADING_LEVELS = {f"h{level}": level for level in range(1, 7)}
HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
SPACES = re.compile(r"[ \t\n\r\f]+")
DECLARED_ENCODING = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)
HEAD_BYTES = 4096
# Encodings of Python that no web page uses; some take quadratic time.
UNSAFE_ENCODINGS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
PAGE_TYPES = ("application/xhtml+xml", "text/html", "application/x-dtbook+xml", "")
# Control characters of Latin-1 are what Windows has in their places, as in browsers.
SHOWN = {**INVISIBLE, **{byte: bytes([byte]).decode("cp1252", "ignore") for byte in range(0x80, 0xA0)}}
REPAIR_HINT = "Convert the book to .epub again, for example with Calibre, or save its text as a .txt file."


def read_page(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """A web page, and notes on its encoding."""
    source, notes = _decode_page(stream.read(), name)
    text_files.refuse_other_formats(source[:16].encode(), name)
    return _read_paragraphs(source), notes


def _decode_page(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    """The source of a page and notes on its encoding: UTF-8 where that fits, else as the page declares."""
    with suppress(UnicodeDecodeError):
        return data.decode("utf-8-sig"), ()
    declared = DECLARED_ENCODING.search(data[:HEAD_BYTES])
    encoding = declared[1].decode("ascii") if declared else ""
    with suppress(LookupError, UnicodeError):
        if encoding.lower().replace("-", "") != "utf8" and codecs.lookup(encoding).name not in UNSAFE_ENCODINGS:
            return data.decode(encoding), (f"{name} was read as {encoding}, the encoding that the page declares.",)
    return text_files.decode_bytes(data, name)


def _read_paragraphs(source: str, *, is_content: bool = False) -> list[Paragraph]:
    """The visible text of a page; a page that is all content, such as that of an e-book, has no frame."""
    from lxml import etree

    if not source.strip():
        return []
    collector = _VisibleText(is_content)
    # As a stream of elements: a tree would take much more memory, and recursion could end the process.
    parser = etree.HTMLParser(target=collector, huge_tree=True, encoding="utf-8")
    parser.feed(source.replace("\x00", "").encode("utf-8", "replace"))
    visible: list[Paragraph] = parser.close()
    # Paragraphs with nothing but links are menus, where there are several links.
    marked = []
    for only_links, run in groupby(visible, lambda paragraph: paragraph.links > 0):
        lines = list(run)
        is_list = only_links and len(lines) >= MIN_LINK_LINES
        marked += [each._replace(menu=True) if is_list or each.links >= MIN_LINKS else each for each in lines]
    return marked


class _VisibleText:
    """A parser target that collects the visible paragraphs."""

    def __init__(self, is_content: bool) -> None:
        self.paragraphs: list[Paragraph] = []
        self._text: list[str] = []
        self._has_text = False  # whether `_text` holds more than spaces
        self._skip_depth = 0  # depth inside a skipped element
        self._pre_depth = 0  # depth inside <pre>
        self._level = 0
        self._line_depth = 0
        self._starts_part = False
        self._menu_depth = 0  # depth inside a menu
        self._content_depth = int(is_content)  # depth inside the content of the page
        self._link_depth = 0
        self._links = 0  # in this paragraph
        self._has_words = False  # outside of its links
        self._note: tuple[str, int] | None = None  # the element of a note's mark, and the pieces before it

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        is_hidden = "hidden" in attributes or HIDDEN_STYLE.search(attributes.get("style", "")) is not None
        kinds, roles, classes = (attributes.get(name, "").split() for name in ("epub:type", "role", "class"))
        is_mark = not MARK_CLASSES.isdisjoint(classes) or (tag == "sup" and "reference" in classes)
        # In a manual, a whole heading may lead back to the contents.
        is_mark = is_mark or not (MARK_TYPES.isdisjoint(kinds + roles) or self._level)
        if not self._skip_depth and not NOTE_TYPES.isdisjoint(kinds + roles):
            self._note = (tag, len(self._text))
        if self._skip_depth or tag in SKIPPED_TAGS or is_hidden or is_mark:
            self._skip_depth += 1
            return
        if tag in BLOCK_TAGS:
            self._end_paragraph()
            self._level = HEADING_LEVELS.get(tag, self._level)
            self._line_depth += tag in LINE_TAGS
            self._pre_depth += tag == "pre"
            self._starts_part = self._starts_part or tag == "hr"
            # A menu, or a part of the page's frame; everything inside it counts, to find its end.
            is_frame = tag in FRAME_TAGS and not self._content_depth
            is_marked = "navigation" in roles or not MENU_CLASSES.isdisjoint(classes)
            is_menu = tag not in ("html", "body") and (tag == "nav" or is_frame or is_marked)
            self._menu_depth += self._menu_depth > 0 or is_menu
            self._content_depth += tag in CONTENT_TAGS
        elif tag == "a" and "href" in attributes:
            self._links += 1
            self._link_depth = 1
        elif tag == "br":
            self._text.append("\n")
        elif tag in ("td", "th") and self._has_text:
            self._text.append("\t")

    def end(self, tag: str) -> None:
        if self._skip_depth:
            self._skip_depth -= 1
            return
        if self._note and tag == self._note[0]:
            start = self._note[1]
            if not WORD.search("".join(self._text[start:])):  # a note on a word of the text has the word in it
                del self._text[start:]
            self._note = None
        if tag in BLOCK_TAGS:
            self._end_paragraph()
            self._level = 0 if tag in HEADING_LEVELS else self._level
            self._line_depth -= tag in LINE_TAGS
            self._pre_depth -= tag == "pre"
            self._menu_depth -= self._menu_depth > 0
            self._content_depth -= tag in CONTENT_TAGS
        elif tag == "a":
            self._link_depth = 0

    def data(self, text: str) -> None:
        if not self._skip_depth:
            text = text.translate(SHOWN)
            self._text.append(text if self._pre_depth else SPACES.sub(" ", join_unspaced(text)))
            self._has_text = self._has_text or not text.isspace()
            self._has_words = self._has_words or (not self._link_depth and any(map(str.isalnum, text)))

    def close(self) -> list[Paragraph]:
        self._end_paragraph()
        return self.paragraphs

    def _end_paragraph(self) -> None:
        if not self._text:
            return
        text = "".join(self._text)
        links = 0 if self._has_words or self._level else self._links
        self._text.clear()
        self._note = None
        self._links = 0
        self._has_text = self._has_words = False
        if not self._pre_depth:
            text = re.sub(r" *([\n\t]) *", r"\1", re.sub(" {2,}", " ", text)).strip()
        if text.strip():
            in_menu, in_line = self._menu_depth > 0, self._line_depth > 0
            level = 0 if in_menu else self._level  # a heading of a menu begins no chapter
            self.paragraphs.append(Paragraph(text, level, self._starts_part, in_line, in_menu, links))
            self._starts_part = False


def read_epub(stream: BinaryIO, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """A whole e-book; each of its files begins a part."""
    paragraphs = []
    with zipfile.ZipFile(stream) as book:
        for file in _spine(book, name):
            source, _ = _decode_page(book.read(file), f"{name}, {file}")
            own = _read_paragraphs(source, is_content=True)
            paragraphs += [each._replace(cut=each.cut or not number) for number, each in enumerate(own)]
    return paragraphs, ()


def _spine(book: zipfile.ZipFile, name: str) -> list[str]:
    """The files of the book in reading order, without navigation pages and those outside the linear order."""
    rootfile = next(_read_xml(book, "META-INF/container.xml", name).iter("{*}rootfile"), None)  # in any namespace
    if rootfile is None or not rootfile.get("full-path"):
        raise DataError(f"{name}: its container.xml does not say where the book starts. {REPAIR_HINT}")
    package = unquote(rootfile.get("full-path"))
    opf = _read_xml(book, package, name)
    manifest = {item.get("id"): item for item in opf.iter("{*}item")}
    files = []
    for reference in opf.iter("{*}itemref"):
        item = manifest.get(reference.get("idref"))
        if item is None or reference.get("linear") == "no" or not item.get("href"):
            continue
        if item.get("media-type", "") in PAGE_TYPES and "nav" not in (item.get("properties") or "").split():
            href = unquote(item.get("href").partition("#")[0])
            files.append(posixpath.normpath(posixpath.join(posixpath.dirname(package), href)))
    if not files:
        raise DataError(f"{name}: its {package} lists no pages to read (no spine). {REPAIR_HINT}")
    encryption = "META-INF/encryption.xml"
    if encryption in book.namelist():  # of any book, the fonts may be encrypted
        references = _read_xml(book, encryption, name).iter("{*}CipherReference")
        if {unquote(each.get("URI", "")) for each in references} & set(files):
            raise DataError(
                f"{name} is protected by DRM, so its text can't be read. Use a copy without protection."
            )
    return files


def _read_xml(book: zipfile.ZipFile, file: str, name: str) -> Any:
    from lxml import etree

    # Entities may name files or swell a thousandfold, and no address may be opened.
    parser = etree.XMLParser(resolve_entities=False, no_network=True, recover=True)
    root = etree.fromstring(book.read(file), parser)
    if root is None:
        raise DataError(f"{name}: {file} is empty. {REPAIR_HINT}")
    return root
