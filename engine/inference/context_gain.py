"""Context gain: by how much the loss of a continuation falls when the model reads what comes before it.

Measured for later turns of a conversation, alone and after the turns before them; for a block of a text, alone and
after the block before it; with `length_then_order` also for consecutive rows. The same tokens count both times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...data.examples import Example, Examples, TextSource
from .eval_loop import EvalLoop

MAX_PAIRS = 32  # evenly spaced; each is read twice, once at about twice its length
Ids = np.ndarray[Any, Any]


class ContinuationPair(NamedTuple):
    """A continuation by itself, and after its context."""

    alone: Example
    with_context: Example


PairFactory = Callable[[], ContinuationPair]


def measure_context_gain(eval_loop: EvalLoop, pairs: list[ContinuationPair]) -> float | None:
    """Return the mean loss alone minus that with context; None if there are no pairs or the run is stopping."""
    if not pairs:
        return None
    groups = [0] * len(pairs)
    alone = eval_loop.sums([pair.alone for pair in pairs], groups, 1)
    with_context = eval_loop.sums([pair.with_context for pair in pairs], groups, 1) if alone else None
    return None if alone is None or with_context is None else alone.loss - with_context.loss


def continuation_pairs(
    examples: Examples, bos: int | None, longest: int, *, rows_too: bool
) -> list[ContinuationPair]:
    """Return up to `MOST` evenly spaced pairs that fit into the model's context."""
    factories = [
        *_turn_pairs(examples, bos, longest),
        *_consecutive_pairs(examples, bos, longest, rows_too=rows_too),
    ]
    indices = np.linspace(0, len(factories) - 1, min(MAX_PAIRS, len(factories))).round().astype(int)
    return [factories[index]() for index in indices.tolist()]


def _turn_pairs(examples: Examples, bos: int | None, longest: int) -> Iterator[PairFactory]:
    """Yield pairs for the replies of a conversation after its first one."""
    for example in examples:
        if example.loss_mask is None:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[0], example.loss_mask, [0]]).astype(np.int8)))
        for (_, reply_end), (start, end) in pairwise(edges.reshape(-1, 2).tolist()):
            if not longest or end <= longest:
                yield partial(_turn_pair, example, reply_end, start, end, bos)


def _turn_pair(example: Example, before: int, start: int, end: int, bos: int | None) -> ContinuationPair:
    """Pair the reply from `start` to `end`: after its own message only, and after the whole conversation."""
    start_token, text = _start_token(example.ids, bos), example.ids[before:end]
    alone = np.concatenate([start_token, text])
    return ContinuationPair(
        _with_last_labels(example, alone, end - start),
        _with_last_labels(example, example.ids[:end], end - start),
    )


def _consecutive_pairs(
    examples: Examples, bos: int | None, longest: int, *, rows_too: bool
) -> Iterator[PairFactory]:
    """Yield pairs for consecutive blocks and, with `rows_too`, rows."""
    lengths, sources = examples.lengths(), examples.source_numbers()
    allowed = [rows_too or isinstance(source, TextSource) for source in examples.sources]
    for index, next_index in enumerate(examples.successors()):
        if next_index < 0 or (longest and lengths[index] + lengths[next_index] > longest):
            continue
        if allowed[sources[index]]:
            yield partial(_consecutive_pair, examples, index, next_index, bos)


def _consecutive_pair(examples: Examples, index: int, next_index: int, bos: int | None) -> ContinuationPair:
    earlier, example = examples[index], examples[next_index]
    labels = np.ones(len(example.ids), bool) if example.loss_mask is None else example.loss_mask
    labels = np.concatenate([[False], labels[1:]])  # alone, nothing precedes the first token
    offset = len(_start_token(example.ids, bos))
    ids = np.concatenate([earlier.ids, example.ids[offset:]])
    flags = np.concatenate([np.zeros(len(earlier.ids), bool), labels[offset:]])
    return ContinuationPair(
        Example(example.ids, labels, example.source, 0), Example(ids, flags, example.source, 0)
    )


def _start_token(ids: Ids, bos: int | None) -> Ids:
    """Return the start token if the ids begin with it, else no ids."""
    return ids[:1] if bos is not None and len(ids) and int(ids[0]) == bos else ids[:0]


def _with_last_labels(example: Example, ids: Ids, count: int) -> Example:
    """Return an example of which only the last `count` tokens are learned."""
    flags: Ids = np.zeros(len(ids), bool)
    flags[len(ids) - count :] = True
    return Example(ids, flags, example.source, example.number)
