"""Texts in sliding windows: each token counts once, behind as much of what stands before it as fits."""

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
    """With a start token in front of each, where the tokenizer puts one; a stride of 0 is half a window."""
    stride = stride or max(1, length // 2)
    if not 0 < stride <= max(length - 1, 1):
        most = max(length - 1, 1)
        raise SettingsError([f"Stride: {stride} would leave tokens out, or count some twice. Use 1 to {most}."])
    written = [text.text for text in texts]
    stretches = Stretches(written, tokenizer.encode(written))
    found = [
        (window, _places(window, numbers, tokenizer.bos))
        for one, numbers in zip(stretches.encoded, stretches.of_tokens, strict=True)
        for window in _over(one.ids, tokenizer.bos, length, stride)
    ]
    if not found:
        raise DataError(f"{name} is too short: a text of at least two tokens is needed.")
    examples, places = zip(*found, strict=True)
    return Material(
        name, examples, places, stretches.count, stride, length, told=lambda sums: Told(stretches.told(sums))
    )


def _places(window: Example, numbers: Numbers, bos: int | None) -> Numbers:
    """Of a window's tokens the stretches; a start token is never predicted, so that any will do for it."""
    first = window.number - (bos is not None)
    places: Numbers = numbers[np.arange(first, first + len(window.ids)).clip(0)]
    return places


def _over(ids: np.ndarray[Any, Any], bos: int | None, length: int, stride: int) -> Iterator[Example]:
    """In each window those tokens count that none before it has counted; nothing predicts a very first one."""
    head = np.array([] if bos is None else [bos], ids.dtype)
    room = length - len(head)
    counted, start = 0, 0
    while counted < len(ids):
        end = min(start + room, len(ids))
        window = np.concatenate([head, ids[start:end]])
        flags = np.arange(start - len(head), end) >= counted
        if len(window) > 1:
            yield Example(window, flags, cast("Source", None), start)  # out of no data set
        counted, start = end, start + stride
