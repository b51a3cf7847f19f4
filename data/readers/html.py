"""HTML to paragraphs: the visible text of a page, without scripts, styles and hidden elements."""

from __future__ import annotations

import codecs
import re
from collections.abc import Iterable, Iterator, Mapping
from itertools import groupby

from ...core.errors import DataError
from ..unspaced import join_unspaced
from . import text_files
from .paragraphs import Paragraph

SKIPPED_TAGS = frozenset(
    [
        *("head", "title", "script", "style", "template", "noscript", "frameset", "applet", "object", "iframe"),
        *("svg", "math", "canvas", "audio", "video", "map", "datalist", "select", "textarea"),
        *("rp", "rt"),  # ruby: the pronunciation above characters, not part of the sentence
    ]
)
BLOCK_TAGS = frozenset(
    [
        *("html", "body", "p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "center", "hr"),
        *("ul", "ol", "dl", "li", "dt", "dd", "table", "caption", "thead", "tbody", "tfoot", "tr"),
        *("section", "article", "aside", "header", "footer", "nav", "main", "figure", "figcaption", "address"),
        *("form", "fieldset", "details", "summary"),
    ]
)
LINE_TAGS = frozenset({"li", "dt", "dd", "tr"})
FRAME_TAGS = frozenset({"header", "footer", "aside", "address"})  # of the page; in its content they are text
CONTENT_TAGS = frozenset({"main", "article", "section"})
MENU_CLASSES = frozenset({"nav", "navigation", "navbar", "breadcrumb", "breadcrumbs", "pagination"})
MIN_LINKS, MIN_LINK_LINES = 2, 3  # of a menu without a mark: links in one line, or lines, without other words
HEADING_LEVELS = {f"h{level}": level for level in range(1, 7)}
HIDDEN_STYLE = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
SPACES = re.compile(r"[ \t\n\r\f]+")
DECLARED_ENCODING = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)
HEAD_BYTES = 4096
UNSAFE_ENCODINGS = frozenset({"idna", "punycode", "raw-unicode-escape", "undefined", "unicode-escape"})
"""Encodings of Python that no web page uses; some take quadratic time."""


def decode_page(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    """The source of a page and notes on its encoding: UTF-8 where that fits, else as the page declares."""
    declared = DECLARED_ENCODING.search(data[:HEAD_BYTES])
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        encoding = declared[1].decode("ascii") if declared else ""
    try:
        if encoding.lower().replace("-", "") != "utf8" and codecs.lookup(encoding).name not in UNSAFE_ENCODINGS:
            return data.decode(encoding), (f"{name} was read as {encoding}, the encoding that the page declares.",)
    except (LookupError, UnicodeError):
        pass
    return text_files.decode_bytes(data, name)


def read_paragraphs(source: str, name: str, *, is_content: bool = False) -> list[Paragraph]:
    """The visible text of a page; a page that is all content, such as that of an e-book, has no frame."""
    lxml = text_files.import_library("lxml.etree", "lxml", name, "a web page")
    collector = _VisibleText(is_content)
    parser = lxml.HTMLParser(target=collector, huge_tree=True, encoding="utf-8")
    try:
        parser.feed(source.replace("\x00", "").encode("utf-8", "replace"))
        visible: list[Paragraph] = parser.close()
    except lxml.LxmlError as error:
        if not source.strip():
            return []
        raise DataError(f"{name} can't be read as HTML ({error}). Save its text as a .txt file.") from error
    return list(_mark_link_lists(visible))


def _mark_link_lists(paragraphs: Iterable[Paragraph]) -> Iterator[Paragraph]:
    """Mark paragraphs with nothing but links as menus, where there are several links."""
    for only_links, run in groupby(paragraphs, lambda paragraph: paragraph.links > 0):
        lines = list(run)
        is_list = only_links and len(lines) >= MIN_LINK_LINES
        for line in lines:
            yield line._replace(menu=True) if is_list or line.links >= MIN_LINKS else line


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

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._skip_depth or tag in SKIPPED_TAGS or _is_hidden(attributes):
            self._skip_depth += 1
            return
        if tag in BLOCK_TAGS:
            self._end_paragraph()
            self._level = HEADING_LEVELS.get(tag, self._level)
            self._line_depth += tag in LINE_TAGS
            self._pre_depth += tag == "pre"
            self._starts_part = self._starts_part or tag == "hr"
            self._menu_depth += self._menu_depth > 0 or self._is_menu(tag, attributes)
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
        self._links = 0
        self._has_text = self._has_words = False
        if not self._pre_depth:
            text = re.sub(r" *([\n\t]) *", r"\1", re.sub(" {2,}", " ", text)).strip()
        if text.strip():
            in_menu, in_line = self._menu_depth > 0, self._line_depth > 0
            level = 0 if in_menu else self._level  # a heading of a menu begins no chapter
            self.paragraphs.append(Paragraph(text, level, self._starts_part, in_line, in_menu, links))
            self._starts_part = False

    def _is_menu(self, tag: str, attributes: Mapping[str, str]) -> bool:
        """Whether an element is a menu, or a part of the page's frame."""
        if tag in ("html", "body"):
            return False
        return (
            tag == "nav"
            or (tag in FRAME_TAGS and not self._content_depth)
            or attributes.get("role") == "navigation"
            or not MENU_CLASSES.isdisjoint(attributes.get("class", "").split())
        )


def _is_hidden(attributes: Mapping[str, str]) -> bool:
    return "hidden" in attributes or bool(HIDDEN_STYLE.search(attributes.get("style", "")))
