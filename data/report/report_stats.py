"""Statistics of datasets, for the report of each source."""

from __future__ import annotations

from collections.abc import Sequence

from ..examples import Examples, TextSource
from ..text import build_slice_map, combine_coverage
from .report import LengthHistogram, RowReport, SourceReport, TextReport, ValidationSplit

MAX_COLUMNS = 32  # of the histogram


def length_histogram(values: Sequence[int]) -> LengthHistogram:
    """Make a histogram of lengths; the width of its columns is a power of two."""
    import numpy as np

    if not len(values):
        return LengthHistogram()
    two_longest = sorted(values)[-2:]
    width = 8
    while two_longest[-1] > width * MAX_COLUMNS:
        width *= 2
    counts = np.bincount((np.asarray(values) - 1) // width)
    return LengthHistogram(
        width, tuple(counts.tolist()), two_longest[-1], two_longest[0] if len(two_longest) > 1 else 0
    )


def report_texts(
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
        lengths=length_histogram(examples.lengths()),
        text=_text_report(sources),
        notes=tuple(notes),
    )


def _text_report(sources: Sequence[TextSource]) -> TextReport:
    maps = [build_slice_map(source.sliced) for source in sources]
    combined = combine_coverage(maps)
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


def report_rows(what: str, name: str, examples: Examples, report: RowReport, notes: Sequence[str]) -> SourceReport:
    """Report on a dataset of rows."""
    return SourceReport(
        name=name,
        what=what,
        files=1,
        examples=len(examples),
        tokens=sum(examples.lengths()),
        trained_tokens=sum(examples.learned()),
        lengths=length_histogram(examples.lengths()),
        rows=report,
        notes=tuple(notes),
    )


def report_validation_split(examples: Examples) -> ValidationSplit | None:
    """Report on the validation split; None where there is none."""
    if not examples.sources:
        return None
    parts = sum(len(set(source.sections)) for source in examples.sources)
    return ValidationSplit(parts, len(examples), sum(examples.lengths()), sum(examples.learned()))
