"""The numbers of a data set: what Check says of each source and of all."""

from __future__ import annotations

from collections.abc import Sequence

from ..examples import Examples, TextSource
from ..text import build_slice_map, together
from .report import KeptAside, Lengths, RowReport, SourceReport, TextReport

COLUMNS = 32  # of a histogram


def lengths(values: Sequence[int]) -> Lengths:
    """How long examples are, in at most so many columns of a round width."""
    import numpy as np

    if not len(values):
        return Lengths()
    longest = sorted(values)[-2:]
    width = 8
    while longest[-1] > width * COLUMNS:
        width *= 2
    counts = np.bincount((np.asarray(values) - 1) // width)
    return Lengths(width, tuple(counts.tolist()), longest[-1], longest[0] if len(longest) > 1 else 0)


def of_texts(
    name: str, what: str, files: int, sources: Sequence[TextSource], taken: Examples, notes: Sequence[str]
) -> SourceReport:
    """A data set of raw text: how it was cut, and what of it is trained on."""
    return SourceReport(
        name=name,
        what=what,
        files=files,
        examples=len(taken),
        tokens=sum(taken.lengths()),
        trained_tokens=sum(taken.learned()),
        lengths=lengths(taken.lengths()),
        text=_cut(sources),
        notes=tuple(notes),
    )


def _cut(sources: Sequence[TextSource]) -> TextReport:
    maps = [build_slice_map(source.sliced) for source in sources]
    seen = together(maps)
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
        seen_least=seen.least,
        seen_mean=seen.mean,
        seen_most=seen.most,
        maps=tuple(zip((s.name for s in sources), maps, strict=True)),
    )


def of_rows(what: str, name: str, taken: Examples, report: RowReport, notes: Sequence[str]) -> SourceReport:
    """A data set of rows, as it is trained on."""
    return SourceReport(
        name=name,
        what=what,
        files=1,
        examples=len(taken),
        tokens=sum(taken.lengths()),
        trained_tokens=sum(taken.learned()),
        lengths=lengths(taken.lengths()),
        rows=report,
        notes=tuple(notes),
    )


def kept(examples: Examples) -> KeptAside | None:
    """What is kept aside for testing."""
    if not examples.sources:
        return None
    parts = sum(len(set(source.sections)) for source in examples.sources)
    return KeptAside(parts, len(examples), sum(examples.lengths()), sum(examples.learned()))
