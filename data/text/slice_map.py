"""The figures of how a text was sliced, for Check and for the drawing on the page."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from itertools import accumulate, islice
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


@dataclass(frozen=True)
class SliceMap:
    """A text and its blocks, or all texts of a dataset; places are shares of the text, from 0 to 1."""

    parts: int = 0  # sections
    sentences: int = 0
    lines: int = 0  # only those that are units
    parts_by_lines: int = 0
    blocks: int = 0  # without overlap blocks
    overlaps: int = 0
    text_tokens: int = 0  # in the text itself
    characters: int = 0
    left_out: int = 0  # blocks
    characters_lost: int = 0
    seen_least: int = 0  # blocks that hold a sentence or line
    seen_mean: float = 0.0
    seen_most: int = 0
    maps: tuple[tuple[str, SliceMap], ...] = ()  # of a dataset, those of its texts
    windows: int = 0  # blocks that are DEMENTOR windows
    hard_cuts: tuple[float, ...] = ()
    bars: tuple[Bar, ...] = ()  # empty where there are too many to draw
    seen_along: tuple[float, ...] = ()  # how often each part of the text is seen, one value per column
    trained_tokens: int = 0  # in all blocks, with BOS and EOS
    left_out_characters: int = 0
    lost: tuple[str, ...] = ()  # a few examples of text that is in no block

    @property
    def units_text(self) -> str:
        """The number of sentences and of lines, as in '340 sentences and 12 lines (of verse or a list)'."""
        in_sentences = f"{self.sentences:,} {plural(self.sentences, 'sentence')}"
        in_lines = f"{self.lines:,} {plural(self.lines, 'line')}"
        if self.sentences and self.lines:
            return f"{in_sentences} and {in_lines} (of verse or a list)"
        return in_lines if self.lines else in_sentences

    def words(self, trained_tokens: int) -> str:
        """What blocks consist of, how often the model sees each unit, and the length of an epoch."""
        by_lines, by_sentences = self.parts_by_lines, self.parts - self.parts_by_lines
        contents = "whole lines" if by_lines else "whole sentences"
        if by_lines and by_sentences:
            contents = f"whole sentences (whole lines in {by_lines:,} of {self.parts:,} sections)"
            if by_lines > by_sentences:
                contents = f"whole lines (whole sentences in {by_sentences:,} of {self.parts:,} sections)"
        unit = "sentence or line" if self.sentences and self.lines else "line" if self.lines else "sentence"
        growth = trained_tokens / self.text_tokens if self.text_tokens else 0.0
        return (
            f"blocks consist of {contents}; the model sees each {unit} "
            f"{format_times_range(self.seen_least, self.seen_most)} per epoch; "
            f"an epoch has {growth:.2f} times as many tokens as the text"
        )

    @property
    def proof(self) -> str:
        """Sentences that say whether any text is missing from the blocks."""
        line = "No characters are lost in slicing"
        if lost := self.characters_lost:
            which = ", ".join(map(repr, self.lost))
            line = f"{format_count(lost, 'character')} {plural(lost, 'is', 'are')} lost ({which}: {LOST_REASON})"
        if self.left_out:
            blocks = format_count(self.left_out, "block")
            characters = format_count(self.left_out_characters, "character")
            line += f"; {blocks} ({characters}) {plural(self.left_out, 'was', 'were')} dropped as too small"
        return line


def build_slice_map(*texts: SlicedText) -> SliceMap:
    """The map of a sliced text, or of several, such as the parts of a large one, as if they were one."""
    offsets = [*accumulate((len(sliced.text) for sliced in texts), initial=0)]
    length = offsets[-1]
    nothing: Ints = np.zeros(0, np.int64)

    def places(column: Callable[[SlicedText], Ints]) -> Ints:
        """The places of all texts in the whole."""
        shifted = (column(sliced) + start for sliced, start in zip(texts, offsets, strict=False))
        return np.concatenate([nothing, *shifted])

    starts, ends = places(lambda sliced: sliced.starts), places(lambda sliced: sliced.ends)
    cuts = places(lambda sliced: sliced.sections.cuts)
    kinds: Ints = np.concatenate([nothing, *(sliced.spans.kind for sliced in texts)])
    block_count, overlaps, windows = np.bincount(kinds, minlength=len(BLOCK_KINDS)).tolist()
    drawn = zip(starts.tolist(), ends.tolist(), kinds.tolist(), strict=True) if len(kinds) <= MAX_DRAWN else ()
    seen, lines = list[tuple[int, int, int]](), 0
    for sliced in (sliced for sliced in texts if len(sliced.units)):
        units = sliced.units
        lines += int((units.opens & sliced.sections.by_lines[units.section]).sum())
        # Each block adds one at its first unit and takes one away behind its last.
        steps: Ints = np.zeros(len(units) + 1, np.int64)
        np.add.at(steps, sliced.spans.first, 1)
        np.add.at(steps, sliced.spans.last, -1)
        times = np.cumsum(steps[:-1])
        seen.append((int(times.min()), int(times.sum()), int(times.max())))
    lost = (sliced.text[start:end] for sliced in texts for start, end in sliced.lost_places())
    return SliceMap(
        parts=sum(len(sliced.sections) for sliced in texts),
        sentences=sum(int(sliced.units.opens.sum()) for sliced in texts) - lines,
        lines=lines,
        parts_by_lines=sum(int(sliced.sections.by_lines.sum()) for sliced in texts),
        blocks=block_count + windows,
        overlaps=overlaps,
        text_tokens=sum(len(sliced.units.ids) for sliced in texts),
        characters=length,
        left_out=sum(sliced.left_out for sliced in texts),
        characters_lost=sum(sliced.lost for sliced in texts),
        seen_least=min((least for least, _, _ in seen), default=0),
        seen_mean=round(sum(total for _, total, _ in seen) / max(sum(len(s.units) for s in texts), 1), 2),
        seen_most=max((most for _, _, most in seen), default=0),
        windows=windows,
        # Thinned out to what can be drawn.
        hard_cuts=tuple((cuts[:: max(1, -(-len(cuts) // MAX_DRAWN))] / max(length, 1)).tolist()),
        bars=tuple(Bar(start / length, end / length, BLOCK_KINDS[kind]) for start, end, kind in drawn),
        seen_along=_coverage_by_column(starts, ends, length),
        trained_tokens=sum(int(sliced.lengths.sum()) for sliced in texts),
        left_out_characters=sum(sliced.left_out_characters for sliced in texts),
        lost=tuple(islice(lost, MAX_LOST)),
    )


def _coverage_by_column(starts: Ints, ends: Ints, length: int) -> tuple[float, ...]:
    """The mean number of blocks over each column of the map."""
    if not length:
        return (0.0,) * MAP_COLUMNS
    edges = np.linspace(0, length, MAP_COLUMNS + 1)

    def sum_distances(places: Ints) -> Ints:
        """For each edge, the sum of its distances to all places before it."""
        places = np.sort(places)
        before = np.searchsorted(places, edges, side="right")
        sums = np.concatenate([[0.0], np.cumsum(places)])
        return before * edges - sums[before]

    # What all blocks cover up to an edge is its distances to their starts, without those to their ends.
    covered = sum_distances(starts) - sum_distances(ends)
    return tuple((np.diff(covered) / np.maximum(np.diff(edges), 1e-9)).round(3).tolist())
