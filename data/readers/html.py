"""HTML to paragraphs: what a reader of the page sees, without scripts, styles and what is hidden."""

from __future__ import annotations

import re
from collections.abc import Mapping

from ...core.errors import DataError
from . import text_files
from .paragraphs import Paragraph

UNSEEN = frozenset(
    [
        *("head", "title", "script", "style", "template", "noscript", "frameset", "applet", "object", "iframe"),
        *("svg", "math", "canvas", "audio", "video", "map", "datalist", "select", "textarea"),
        *("rp", "rt"),  # how characters are read aloud stands above them, not in the sentence
    ]
)
BLOCKS = frozenset(
    [
        *("html", "body", "p", "div", "h1", "h2", "h3", "h4", "h5", "h6", "pre", "blockquote", "center", "hr"),
        *("ul", "ol", "dl", "li", "dt", "dd", "table", "caption", "thead", "tbody", "tfoot", "tr"),
        *("section", "article", "aside", "header", "footer", "nav", "main", "figure", "figcaption", "address"),
        *("form", "fieldset", "details", "summary"),
    ]
)
LINES = frozenset({"li", "dt", "dd", "tr"})
HEADINGS = {f"h{level}": level for level in range(1, 7)}
HIDDEN = re.compile(r"display\s*:\s*none|visibility\s*:\s*hidden", re.IGNORECASE)
SPACES = re.compile(r"[ \t\n\r\f]+")
DECLARED = re.compile(
    rb"<(?:meta|\?xml)[^>]{0,200}?(?:charset|encoding)\s*=\s*[\"']?([\w.:-]{2,40})", re.IGNORECASE
)
HEAD_BYTES = 4096


def text_of(data: bytes, name: str) -> tuple[str, tuple[str, ...]]:
    """A page's source, in the encoding that it names unless it is UTF-8 after all."""
    declared = DECLARED.search(data[:HEAD_BYTES])
    try:
        return data.decode("utf-8-sig"), ()
    except UnicodeDecodeError:
        encoding = declared[1].decode("ascii") if declared else ""
    try:
        if encoding.lower().replace("-", "") != "utf8":
            return data.decode(encoding), (f"{name} was read as {encoding}, as it says itself.",)
    except (LookupError, UnicodeDecodeError):
        pass
    return text_files.decoded(data, name)


def paragraphs(source: str, name: str) -> list[Paragraph]:
    """The visible text of a page."""
    lxml = text_files.library("lxml.etree", "lxml", name, "HTML")
    seen = _Seen()
    parser = lxml.HTMLParser(target=seen, huge_tree=True, encoding="utf-8")
    try:
        parser.feed(source.replace("\x00", "").encode("utf-8", "replace"))
        found: list[Paragraph] = parser.close()
    except lxml.LxmlError as error:
        if not source.strip():
            return []
        raise DataError(f"{name} cannot be read as HTML ({error}). Save its text as a .txt file.") from error
    return found


class _Seen:
    """Follows the parser through a page and keeps what is seen of it."""

    def __init__(self) -> None:
        self.found: list[Paragraph] = []
        self._text: list[str] = []
        self._unseen = 0  # how many elements deep inside of one that is not seen
        self._as_it_is = 0  # and inside of <pre>
        self._level = 0
        self._line = 0
        self._cut = False

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        if self._unseen or tag in UNSEEN or _hidden(attributes):
            self._unseen += 1
            return
        if tag in BLOCKS:
            self._end_paragraph()
            self._level = HEADINGS.get(tag, self._level)
            self._line += tag in LINES
            self._as_it_is += tag == "pre"
            self._cut = self._cut or tag == "hr"
        elif tag == "br":
            self._text.append("\n")
        elif tag in ("td", "th") and "".join(self._text).strip():
            self._text.append("\t")

    def end(self, tag: str) -> None:
        if self._unseen:
            self._unseen -= 1
            return
        if tag in BLOCKS:
            self._end_paragraph()
            self._level = 0 if tag in HEADINGS else self._level
            self._line -= tag in LINES
            self._as_it_is -= tag == "pre"

    def data(self, text: str) -> None:
        if not self._unseen:
            self._text.append(text if self._as_it_is else SPACES.sub(" ", text))

    def close(self) -> list[Paragraph]:
        self._end_paragraph()
        return self.found

    def _end_paragraph(self) -> None:
        text = "".join(self._text)
        self._text.clear()
        if not self._as_it_is:
            text = re.sub(r" *([\n\t]) *", r"\1", re.sub(" {2,}", " ", text)).strip()
        if text.strip():
            self.found.append(Paragraph(text, self._level, self._cut, self._line > 0))
            self._cut = False


def _hidden(attributes: Mapping[str, str]) -> bool:
    return "hidden" in attributes or bool(HIDDEN.search(attributes.get("style", "")))
