"""PDF documents to paragraphs: lines joined, running heads and page numbers left out, chapters by the outline."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import text_files
from .paragraphs import Paragraph

FEWEST_PAGES = 4  # of a document whose running heads are looked for
ENDED = tuple(".!?…:;\"'”’»)]")
HYPHENATED = re.compile(r"(\w)[-\u00ad\u2010]\n(?=[a-zß-öø-ÿ])")
Page = list[str]


def paragraphs(path: Path, name: str) -> tuple[list[Paragraph], tuple[str, ...]]:
    """The document's text, page after page, and whether it had to be mended."""
    pymupdf = text_files.library("pymupdf", "pymupdf", name, "a PDF document")
    shown = pymupdf.TOOLS.mupdf_display_errors()
    pymupdf.TOOLS.mupdf_display_errors(False)  # they would go to the console
    try:
        with text_files.opened(path, name):
            pass
        with pymupdf.open(path, filetype="pdf") as document:
            found = _of(document, pymupdf, name)
            mended = f"{name} is damaged and was mended in reading: look whether all of its text is there."
            return found, (mended,) if document.is_repaired else ()
    except (RuntimeError, ValueError, pymupdf.mupdf.FzErrorBase) as error:
        short = " ".join(str(error).split())[:120]
        raise DataError(
            f"{name} is no whole PDF document ({short}). Open it in a reader and print it anew."
        ) from error
    finally:
        pymupdf.TOOLS.mupdf_display_errors(shown)


def _of(document: Any, pymupdf: Any, name: str) -> list[Paragraph]:
    if document.needs_pass:
        raise DataError(f"{name} is locked with a password. Save a copy without one.")
    flags = pymupdf.TEXT_PRESERVE_WHITESPACE | pymupdf.TEXT_MEDIABOX_CLIP
    pages = [[block[4] for block in page.get_text("blocks", flags=flags) if block[6] == 0] for page in document]
    if not any(text.strip() for page in pages for text in page):
        raise DataError(
            f"{name} holds no text in its {len(pages)} pages, only pictures. Let a program for text recognition "
            "(OCR) read it first."
        )
    chapters = {entry[2] - 1 for entry in document.get_toc() if entry[0] == 1}
    return list(_flowing(_without_heads(pages), chapters if len(chapters) > 1 else set()))


def _without_heads(pages: Sequence[Page]) -> list[Page]:
    """Pages without what stands first or last on most of them, numbers aside."""
    stripped = [[text for text in page if text.strip()] for page in pages]
    if len(pages) < FEWEST_PAGES:
        return [[text for text in page if not text.strip().isdigit()] for page in stripped]
    edges = Counter(key for page in stripped for key in {_bare(text) for text in (page[:1] + page[-1:])})
    often = {key for key, count in edges.items() if count > len(pages) / 2 or not key}
    return [
        [t for n, t in enumerate(page) if not (n in (0, len(page) - 1) and _bare(t) in often)] for page in stripped
    ]


def _bare(text: str) -> str:
    return re.sub(r"[\d\s.·|/–—-]+", " ", text).strip().lower()


def _flowing(pages: Sequence[Page], chapters: set[int]) -> Iterator[Paragraph]:
    """Blocks as paragraphs; one that a page's end has cut goes on."""
    last: Paragraph | None = None
    for number, page in enumerate(pages):
        for place, block in enumerate(page):
            text = re.sub(r"\s+", " ", HYPHENATED.sub(r"\1", block.strip())).strip()
            cut = number in chapters and not place
            if last and not place and not cut and not last.text.endswith(ENDED) and text[:1].islower():
                last = last._replace(text=f"{last.text} {text}")
                continue
            if last:
                yield last
            last = Paragraph(text, 0, cut)
    if last:
        yield last
