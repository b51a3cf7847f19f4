"""Sliding windows over texts: each token counts once, after as much preceding text as fits."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, cast

import numpy as np

from ...core.errors import DataError, SettingsError
from ...data.examples import Example
from ...data.load import Tokenizer
from ...data.readers import ReadText
from .perplexity_input import Material, Told
from .segment_scores import Numbers, Stretches

if TYPE_CHECKING:
    from ...data.examples import Source


def windows(name: str, texts: Sequence[ReadText], tokenizer: Tokenizer, length: int, stride: int) -> Material:
    """Return windows over texts as input, each with a start token if the tokenizer adds one.

    A stride of 0 stands for half a window.
    """
    stride = stride or max(1, length // 2)
    if not 0 < stride <= max(length - 1, 1):
        max_stride = max(length - 1, 1)
        raise SettingsError(
            [f"Stride: {stride} would leave tokens out, or count some twice. Use 1 to {max_stride}."]
        )
    strings = [text.text for text in texts]
    segments = Stretches(strings, tokenizer.encode(strings))
    pairs = [
        (window, _token_segments(window, text_segments, tokenizer.bos))
        for encoded, text_segments in zip(segments.encoded, segments.of_tokens, strict=True)
        for window in _over(encoded.ids, tokenizer.bos, length, stride)
    ]
    if not pairs:
        raise DataError(f"{name} is too short: a text of at least two tokens is needed.")
    examples, groups = zip(*pairs, strict=True)
    return Material(
        name, examples, groups, segments.count, stride, length, score=lambda sums: Told(segments.score(sums))
    )


def _token_segments(window: Example, text_segments: Numbers, bos: int | None) -> Numbers:
    """Return the segment of each token of a window; that of the start token is arbitrary, as it never counts."""
    first = window.number - (bos is not None)
    segments: Numbers = text_segments[np.arange(first, first + len(window.ids)).clip(0)]
    return segments


def _over(ids: np.ndarray[Any, Any], bos: int | None, length: int, stride: int) -> Iterator[Example]:
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
