"""Documents other than plain text: choose the reader by suffix, and join the paragraphs to one text."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import html, office, pdf, subtitles, text_files
from .paragraphs import Paragraph, join_paragraphs
from .reader_process import read_item


def _web_page(path: Path, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    with text_files.open_binary(path, name) as stream:
        source, notes = html.decode_page(stream.read(), name)
    text_files.refuse_other_formats(source[:16].encode(), name)
    return html.read_paragraphs(source, name), notes


ParagraphReader = Callable[[Path, str], tuple[list[Paragraph], tuple[str, ...]]]
READERS: Mapping[str, tuple[str, ParagraphReader]] = {
    ".html": ("a web page", _web_page),
    ".htm": ("a web page", _web_page),
    ".epub": ("an e-book", lambda path, name: (html.read_epub(path, name), ())),
    ".pdf": ("a PDF document", pdf.read_paragraphs),
    ".docx": ("a Word document", lambda path, name: (office.read_docx(path, name), ())),
    ".odt": ("an OpenDocument text document", lambda path, name: (office.read_odt(path, name), ())),
    ".srt": ("a subtitle file", subtitles.read_paragraphs),
    ".vtt": ("a subtitle file", subtitles.read_paragraphs),
}


def read_document(path: Path, name: str, hard_cut: str) -> text_files.LoadedText:
    """A document's text, with hard cuts between its chapters; a DataError says why it has none."""
    text, notes, menus = read_item("documents.extract_text", path, name, hard_cut)
    return text_files.LoadedText(name, text, tuple(notes), menus=tuple((start, end) for start, end in menus))


def extract_text(path: str, name: str, hard_cut: str) -> Iterator[tuple[str, tuple[str, ...], tuple[Any, ...]]]:
    """A document's text, notes on the reading, and its menus, as the only item; called in the reader process."""
    file = Path(path)
    description, read_paragraphs = READERS[file.suffix.lower()]
    paragraphs, notes = read_paragraphs(file, name)
    text, parts, menus = join_paragraphs(paragraphs, hard_cut)
    if not text.strip():
        raise DataError(f"{name} is {description} without any text. Remove it from the dataset.")
    chapters = ""
    if parts > 1:  # how many sections there are only the slicer knows: the text may have hard cuts of its own
        separated = "Hard cuts separate its chapters."
        chapters = f" {separated if hard_cut else 'Its chapters are not separated, because Hard cut is empty.'}"
    yield text, (*notes, f"{name} was read as {description}.{chapters}"), menus
