"""Documents other than plain text: choose the reader by suffix, and join the paragraphs to one text."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...core.errors import DataError
from . import docx, epub, html, odt, pdf, subtitles, text_files
from .paragraphs import Paragraph, joined


def _web_page(path: Path, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    with text_files.opened(path, name) as stream:
        source, notes = html.text_of(stream.read(), name)
    text_files.refuse_other_formats(source[:16].encode(), name)
    return html.paragraphs(source, name), notes


Reader = Callable[[Path, str], tuple[list[Paragraph], tuple[str, ...]]]
READERS: Mapping[str, tuple[str, Reader]] = {
    ".html": ("a web page", _web_page),
    ".htm": ("a web page", _web_page),
    ".epub": ("an e-book", lambda path, name: (epub.paragraphs(path, name), ())),
    ".pdf": ("a PDF document", pdf.paragraphs),
    ".docx": ("a Word document", lambda path, name: (docx.paragraphs(path, name), ())),
    ".odt": ("an OpenDocument text", lambda path, name: (odt.paragraphs(path, name), ())),
    ".srt": ("subtitles", subtitles.paragraphs),
    ".vtt": ("subtitles", subtitles.paragraphs),
}


def read(path: Path, name: str, hard_cut: str) -> text_files.ReadText:
    """A document's text, with hard cuts between its chapters; a DataError says why it has none."""
    description, read_paragraphs = READERS[path.suffix.lower()]
    paragraphs, notes = read_paragraphs(path, name)
    text, parts = joined(paragraphs, hard_cut)
    if not text.strip():
        raise DataError(f"{name} is {description} without any text. Take it out of the data.")
    return text_files.ReadText(
        name, text, (*notes, f"{name} was read as {description}{_parts_note(parts, hard_cut)}.")
    )


def _parts_note(count: int, hard_cut: str) -> str:
    if count == 1:
        return ", in one part"
    return f" of {count} parts, " + (
        "a hard cut between them" if hard_cut else "uncut, since the hard cut is empty"
    )
