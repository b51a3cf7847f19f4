"""The figures of how a text was sliced, for Check and for the drawing on the page."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from itertools import islice, pairwise
from typing import NamedTuple

import numpy as np

from ...chunking import BLOCK_KINDS, BlockKind, Ints, SlicedText
from ...train_utils import format_count, format_times_range, plural

MAP_COLUMNS = 200  # the width of the map; each column is a part of the text
MAX_DRAWN = 2000  # blocks or hard cuts that are drawn one by one
MAX_LOST = 3  # examples of text that is in no block
LOST_REASON = "the tokenizer drops them, or a single character becomes more tokens than fit in a block"


class Bar(NamedTuple):
    """A block on the map; start and end are shares of the text."""

    start: float
    end: float
    kind: BlockKind


class Coverage(NamedTuple):
    """The number of blocks that hold a sentence."""

    least: int
    mean: float
    most: int


@dataclass(frozen=True)
class SliceMap:
    """One text and its blocks; places are shares of the text, from 0 to 1."""

    characters: int
    sections: int
    sentences: int
    lines: int  # only those that are units
    parts_by_lines: int
    blocks: int
    overlaps: int
    windows: int  # DEMENTOR windows
    hard_cuts: tuple[float, ...]
    bars: tuple[Bar, ...]  # empty where there are too many to draw
    seen_along: tuple[float, ...]  # how often each part of the text is seen, one value per column
    seen: Coverage
    tokens: int  # in the text itself
    trained_tokens: int  # in all blocks, with BOS and EOS
    left_out: int  # blocks
    left_out_characters: int
    lost: tuple[str, ...]  # a few examples of text that is in no block
    lost_characters: int

    @property
    def growth(self) -> float:
        """The factor by which slicing increases the tokens of an epoch."""
        return self.trained_tokens / self.tokens if self.tokens else 0.0

    @property
    def units(self) -> int:
        """The number of sentences and lines."""
        return self.sentences + self.lines

    @property
    def units_text(self) -> str:
        """The number of sentences and of lines, in words."""
        return describe_units(self.sentences, self.lines)

    @property
    def words(self) -> str:
        """What blocks consist of, how often the model sees each unit, and the length of an epoch."""
        counts = self.sentences, self.lines, self.parts_by_lines, self.sections
        return describe_slicing(*counts, self.seen.least, self.seen.most, self.growth)

    @property
    def proof(self) -> str:
        """Sentences that say whether any text is missing from the blocks."""
        line = "No characters are lost in slicing"
        if lost := self.lost_characters:
            which = ", ".join(map(repr, self.lost))
            line = f"{format_count(lost, 'character')} {plural(lost, 'is', 'are')} lost ({which}: {LOST_REASON})"
        if self.left_out:
            blocks = format_count(self.left_out, "block")
            characters = format_count(self.left_out_characters, "character")
            line += f"; {blocks} ({characters}) {plural(self.left_out, 'was', 'were')} dropped as too small"
        return line


def describe_slicing(
    sentences: int, lines: int, by_lines: int, parts: int, least: int, most: int, growth: float
) -> str:
    """What blocks consist of, how often the model sees each unit, and the length of an epoch."""
    by_sentences = parts - by_lines
    contents = "whole lines" if by_lines else "whole sentences"
    if by_lines and by_sentences:
        contents = f"whole sentences (whole lines in {by_lines:,} of {parts:,} sections)"
        if by_lines > by_sentences:
            contents = f"whole lines (whole sentences in {by_sentences:,} of {parts:,} sections)"
    unit = "sentence or line" if sentences and lines else "line" if lines else "sentence"
    return (
        f"blocks consist of {contents}; the model sees each {unit} {format_times_range(least, most)} per epoch; "
        f"an epoch has {growth:.2f} times as many tokens as the text"
    )


def describe_units(sentences: int, lines: int) -> str:
    """The number of sentences and of lines, as in '340 sentences and 12 lines (of verse or a list)'."""
    in_sentences = f"{sentences:,} {plural(sentences, 'sentence')}"
    in_lines = f"{lines:,} {plural(lines, 'line')}"
    if sentences and lines:
        return f"{in_sentences} and {in_lines} (of verse or a list)"
    return in_lines if lines else in_sentences


def build_slice_map(sliced: SlicedText, columns: int = MAP_COLUMNS) -> SliceMap:
    """The map of one sliced text."""
    units, sections, length = sliced.units, sliced.sections, len(sliced.text)
    lines = int((units.opens & sections.by_lines[units.section]).sum())
    kinds = dict(
        zip(BLOCK_KINDS, np.bincount(sliced.spans.kind, minlength=len(BLOCK_KINDS)).tolist(), strict=True)
    )
    cuts = sections.cuts[:: _thinning_step(len(sections.cuts))] / max(length, 1)
    drawn = sliced if len(sliced) <= MAX_DRAWN else ()
    seen = Coverage(0, 0.0, 0)
    if len(units):
        # Each block adds one at its first unit and takes one away behind its last.
        steps: Ints = np.zeros(len(units) + 1, np.int64)
        np.add.at(steps, sliced.spans.first, 1)
        np.add.at(steps, sliced.spans.last, -1)
        times = np.cumsum(steps[:-1])
        seen = Coverage(int(times.min()), round(float(times.mean()), 2), int(times.max()))
    return SliceMap(
        characters=length,
        sections=len(sections),
        sentences=int(units.opens.sum()) - lines,
        lines=lines,
        parts_by_lines=int(sections.by_lines.sum()),
        blocks=kinds["block"],
        overlaps=kinds["overlap"],
        windows=kinds["dementor"],
        hard_cuts=tuple(cuts.tolist()),
        bars=tuple(Bar(block.start / length, block.end / length, block.kind) for block in drawn),
        seen_along=_coverage_by_column(sliced, columns),
        seen=seen,
        tokens=len(units.ids),
        trained_tokens=int(sliced.lengths.sum()),
        left_out=sliced.left_out,
        left_out_characters=sliced.left_out_characters,
        lost=tuple(sliced.text[start:end] for start, end in islice(sliced.lost_places(), MAX_LOST)),
        lost_characters=sliced.lost,
    )


def _thinning_step(count: int) -> int:
    """The step that thins out so many things to what can be drawn."""
    return max(1, -(-count // MAX_DRAWN))


def _coverage_by_column(sliced: SlicedText, columns: int) -> tuple[float, ...]:
    """The mean number of blocks over each column of the map."""
    if not len(sliced.text):
        return (0.0,) * columns
    edges = np.linspace(0, len(sliced.text), columns + 1)

    def sum_distances(places: Ints) -> Ints:
        """For each edge, the sum of its distances to all places before it."""
        places = np.sort(places)
        before = np.searchsorted(places, edges, side="right")
        sums = np.concatenate([[0.0], np.cumsum(places)])
        return before * edges - sums[before]

    # What all blocks cover up to an edge is its distances to their starts, without those to their ends.
    covered = sum_distances(sliced.starts) - sum_distances(sliced.ends)
    return tuple((np.diff(covered) / np.maximum(np.diff(edges), 1e-9)).round(3).tolist())


def join_maps(maps: Sequence[SliceMap]) -> SliceMap:
    """The map of a text by those of its parts."""
    places = np.cumsum([0, *(part.characters for part in maps)])
    starts = zip(places.tolist(), maps, strict=False)
    cuts = [(start + share * part.characters) / places[-1] for start, part in starts for share in part.hard_cuts]
    sums = {
        field.name: sum(getattr(part, field.name) for part in maps)
        for field in fields(SliceMap)
        if field.type == "int"
    }
    # How often each part of the whole text is seen, by the columns of its parts.
    columns = len(maps[0].seen_along)
    ends = np.concatenate(
        [start + np.arange(1, columns + 1) * (end - start) / columns for start, end in pairwise(places)]
    )
    covered = np.cumsum(np.concatenate([part.seen_along for part in maps]) * np.diff(ends, prepend=0.0))
    edges = np.linspace(0, places[-1], columns + 1)
    seen = np.diff(np.interp(edges, np.append(0.0, ends), np.append(0.0, covered))) / np.diff(edges)
    return SliceMap(
        **sums,
        hard_cuts=tuple(cuts[:: _thinning_step(len(cuts))]),
        bars=(),
        seen_along=tuple(seen.round(3).tolist()),
        seen=combine_coverage(maps),
        lost=tuple(text for part in maps for text in part.lost)[:MAX_LOST],
    )


def combine_coverage(maps: Sequence[SliceMap]) -> Coverage:
    units = sum(slice_map.units for slice_map in maps)
    mean = sum(slice_map.seen.mean * slice_map.units for slice_map in maps) / max(units, 1)
    least = min((slice_map.seen.least for slice_map in maps), default=0)
    most = max((slice_map.seen.most for slice_map in maps), default=0)
    return Coverage(least, round(mean, 2), most)
