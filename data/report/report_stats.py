"""Statistics of datasets, for the report of each source."""

from __future__ import annotations

from collections.abc import Sequence

from ..examples import Examples, TextSource
from ..text import build_slice_map, together
from .report import KeptAside, Lengths, RowReport, SourceReport, TextReport

COLUMNS = 32  # of the histogram


def lengths(values: Sequence[int]) -> Lengths:
    """Make a histogram of lengths; the width of its columns is a power of two."""
    import numpy as np

    if not len(values):
        return Lengths()
    two_longest = sorted(values)[-2:]
    width = 8
    while two_longest[-1] > width * COLUMNS:
        width *= 2
    counts = np.bincount((np.asarray(values) - 1) // width)
    return Lengths(width, tuple(counts.tolist()), two_longest[-1], two_longest[0] if len(two_longest) > 1 else 0)


def of_texts(
    name: str, what: str, files: int, sources: Sequence[TextSource], examples: Examples, notes: Sequence[str]
) -> SourceReport:
    """Report on a dataset of raw text: how it was sliced, and the examples that are used."""
    return SourceReport(
        name=name,
        what=what,
        files=files,
        examples=len(examples),
        tokens=sum(examples.lengths()),
        trained_tokens=sum(examples.learned()),
        lengths=lengths(examples.lengths()),
        text=_text_report(sources),
        notes=tuple(notes),
    )


def _text_report(sources: Sequence[TextSource]) -> TextReport:
    maps = [build_slice_map(source.sliced) for source in sources]
    combined = together(maps)
    return TextReport(
        parts=sum(m.sections for m in maps),
        sentences=sum(m.sentences for m in maps),
        lines=sum(m.lines for m in maps),
        parts_by_lines=sum(m.parts_by_lines for m in maps),
        blocks=sum(m.blocks + m.windows for m in maps),
        overlaps=sum(m.overlaps for m in maps),
        text_tokens=sum(m.tokens for m in maps),
        characters=sum(m.characters for m in maps),
        left_out=sum(m.left_out for m in maps),
        characters_lost=sum(m.lost_characters for m in maps),
        seen_least=combined.least,
        seen_mean=combined.mean,
        seen_most=combined.most,
        maps=tuple(zip((s.name for s in sources), maps, strict=True)),
    )


def of_rows(what: str, name: str, examples: Examples, report: RowReport, notes: Sequence[str]) -> SourceReport:
    """Report on a dataset of rows."""
    return SourceReport(
        name=name,
        what=what,
        files=1,
        examples=len(examples),
        tokens=sum(examples.lengths()),
        trained_tokens=sum(examples.learned()),
        lengths=lengths(examples.lengths()),
        rows=report,
        notes=tuple(notes),
    )


def kept(examples: Examples) -> KeptAside | None:
    """Report on the validation split; None where there is none."""
    if not examples.sources:
        return None
    parts = sum(len(set(source.sections)) for source in examples.sources)
    return KeptAside(parts, len(examples), sum(examples.lengths()), sum(examples.learned()))
