"""Statistics of datasets, for the report of each source."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from ..examples import Examples, TextSource, batch_order, group_parts
from ..text import build_slice_map, combine_coverage, join_maps
from .report import DatasetReport, LengthHistogram, RowReport, SourceReport, TextReport, ValidationSplit

MAX_COLUMNS = 32  # of the histogram


def length_histogram(values: Sequence[int]) -> LengthHistogram:
    """Make a histogram of lengths; the width of its columns is a power of two."""
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


def report_source(
    name: str,
    what: str,
    examples: Examples,
    notes: tuple[str, ...],
    *,
    files: int = 1,
    text: TextReport | None = None,
    rows: RowReport | None = None,
) -> SourceReport:
    """Report on a dataset: how its texts were sliced, or its rows read, and the examples that are used."""
    lengths = examples.lengths()
    return SourceReport(
        name=name,
        what=what,
        files=files,
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        lengths=length_histogram(lengths),
        text=text,
        rows=rows,
        notes=notes,
    )


def report_texts(sources: Sequence[TextSource]) -> TextReport:
    """Report on how texts were sliced into blocks."""
    groups = group_parts(sources)
    parts = ([build_slice_map(source.sliced) for source in group] for group in groups)
    maps = [join_maps(part_maps) if len(part_maps) > 1 else part_maps[0] for part_maps in parts]
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
        maps=tuple(zip((group[0].name for group in groups), maps, strict=True)),
    )


def report_examples(examples: Examples, validation: Examples, batch: int, seed: int) -> DatasetReport:
    """Report the figures of all examples; the steps of the run are still missing in it."""
    lengths = examples.lengths()
    return DatasetReport(
        examples=len(examples),
        tokens=sum(lengths),
        trained_tokens=sum(examples.learned()),
        longest=max(lengths),
        lengths=length_histogram(lengths),
        kept_aside=_validation_split(validation),
        padding=padding_shares(lengths, batch, seed),
    )


def _validation_split(examples: Examples) -> ValidationSplit | None:
    """Report on the validation split; None where there is none."""
    if not examples.sources:
        return None
    parts = sum(len(set(source.sections)) for source in examples.sources)
    return ValidationSplit(parts, len(examples), sum(examples.lengths()), sum(examples.learned()))


def padding_shares(lengths: Sequence[int], batch: int, seed: int) -> dict[str, float]:
    """Return the share of padding for each order of the examples, and with packing."""
    numbers = np.arange(len(lengths))
    orders = {
        "shuffled": batch_order.shuffle(numbers, seed, 0),
        "by_length": batch_order.order_by_length(numbers, lengths, batch, seed, 0),
        "sequential": numbers,
    }
    array = np.asarray(lengths)
    return {name: _padding_share(array[order], batch) for name, order in orders.items()} | {"packed": 0.0}


def _padding_share(lengths: Any, batch: int) -> float:
    starts = np.arange(0, len(lengths), batch)
    widest = np.maximum.reduceat(lengths, starts)
    counts = np.diff(np.append(starts, len(lengths)))
    computed = int((widest * counts).sum())
    return round(1 - int(lengths.sum()) / computed, 4) if computed else 0.0
