"""Input of a perplexity measurement: examples, the group of each token, and how groups become results."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, NamedTuple, cast

import numpy as np

from ...chunking import EncodedText
from ...core.errors import DataError, SettingsError
from ...core.jobs import RowScores, Segment
from ...data.examples import Example, Source
from ...data.readers import LoadedText
from ...data.rows import Tokenizer
from .eval_loop import ExampleSequence, Group, GroupSums


class SegmentScores(NamedTuple):
    """Scores along the length of a dataset, and for rows the scores of the least and best known ones."""

    stretches: tuple[Segment, ...]
    rows: tuple[RowScores, ...] = ()


@dataclass(frozen=True)
class PerplexityInput:
    """Windows of a text, or rows, with a function that turns the sums of their groups into scores."""

    name: str
    examples: ExampleSequence
    groups: Sequence[Group]
    count: int  # of groups
    stride: int
    max_length: int
    score: Callable[[GroupSums], SegmentScores]
    notes: tuple[str, ...] = ()


Numbers = np.ndarray[Any, Any]
MAX_SEGMENTS, MIN_SEGMENT_TOKENS = 100, 16  # most segments, and fewest tokens of one
EXCERPT_LENGTH = 60  # characters


@dataclass(frozen=True)
class Segments:
    """Consecutive texts as one sequence of tokens, divided into equal segments."""

    texts: Sequence[str]
    encoded: Sequence[EncodedText]

    @property
    def count(self) -> int:
        return max(1, min(MAX_SEGMENTS, self._tokens // MIN_SEGMENT_TOKENS))

    @cached_property
    def segment_of_tokens(self) -> list[Numbers]:
        """For each text, the segment of each of its tokens."""
        numbers: Numbers = np.arange(self._tokens) * self.count // max(1, self._tokens)
        return np.split(numbers.astype(np.int32), self._ends[:-1])

    def score(self, sums: GroupSums) -> tuple[Segment, ...]:
        """Return the scores of all segments that have predicted tokens."""
        firsts = np.flatnonzero(np.diff(np.concatenate(self.segment_of_tokens), prepend=-1))
        return tuple(
            Segment(**sums.figures(segment), begins=self._words_at(int(first)))
            for segment, first in enumerate(firsts)
            if sums.tokens[segment]
        )

    @cached_property
    def _ends(self) -> Numbers:
        ends: Numbers = np.cumsum([len(encoded.ids) for encoded in self.encoded])
        return ends

    @property
    def _tokens(self) -> int:
        return int(self._ends[-1])

    def _words_at(self, token: int) -> str:
        """Return the words of the text that follow a token."""
        text = int(np.searchsorted(self._ends, token, side="right"))
        offset = token - int(self._ends[text]) + len(self.encoded[text].ids)
        start = int(self.encoded[text].starts[offset])
        return " ".join(self.texts[text][start : start + 2 * EXCERPT_LENGTH].split())[:EXCERPT_LENGTH]


def window_input(
    name: str, texts: Sequence[LoadedText], tokenizer: Tokenizer, length: int, stride: int
) -> PerplexityInput:
    """Return windows over texts as input, each with a start token if the tokenizer adds one.

    A stride of 0 stands for half a window.
    """
    stride = stride or max(1, length // 2)
    if not 0 < stride <= max(length - 1, 1):
        max_stride = max(length - 1, 1)
        raise SettingsError(
            [f"Stride: {stride} would skip tokens or count some twice. Use a value from 1 to {max_stride}."]
        )
    strings = [str(text.text) for text in texts]
    segments = Segments(strings, tokenizer.encode(strings))
    pairs = [
        (window, _token_segments(window, text_segments, tokenizer.bos))
        for encoded, text_segments in zip(segments.encoded, segments.segment_of_tokens, strict=True)
        for window in _sliding_windows(encoded.ids, tokenizer.bos, length, stride)
    ]
    if not pairs:
        raise DataError(f"{name} is too short: it needs at least two tokens.")
    examples, groups = zip(*pairs, strict=True)
    return PerplexityInput(
        name,
        examples,
        groups,
        segments.count,
        stride,
        length,
        score=lambda sums: SegmentScores(segments.score(sums)),
    )


def _token_segments(window: Example, text_segments: Numbers, bos: int | None) -> Numbers:
    """Return the segment of each token of a window; that of the start token is arbitrary, as it never counts."""
    first = window.number - (bos is not None)
    segments: Numbers = text_segments[np.arange(first, first + len(window.ids)).clip(0)]
    return segments


def _sliding_windows(ids: np.ndarray[Any, Any], bos: int | None, length: int, stride: int) -> Iterator[Example]:
    """Yield windows over ids; tokens that an earlier window has counted do not count again."""
    start_ids = np.array([] if bos is None else [bos], ids.dtype)
    room = length - len(start_ids)
    counted_end, start = 0, 0
    while counted_end < len(ids):
        end = min(start + room, len(ids))
        window = np.concatenate([start_ids, ids[start:end]])
        labels = np.arange(start - len(start_ids), end) >= counted_end
        if len(window) > 1:
            yield Example(window, labels, cast("Source", None), start)  # no dataset
        counted_end, start = end, start + stride
