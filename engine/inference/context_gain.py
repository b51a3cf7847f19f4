"""Context gain: by how much the loss of what goes on from something is lower when that is read first.

Later turns of a conversation alone, and behind the turns before them; a block of a text alone, and behind the
block before it; with `length_then_order` also rows that follow each other. The same tokens count both times.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from functools import partial
from itertools import pairwise
from typing import Any, NamedTuple

import numpy as np

from ...data.examples import Example, Examples, TextSource
from .eval_loop import Pass

MOST = 32  # spread evenly: each is read twice, once with twice its length
Ids = np.ndarray[Any, Any]


class Later(NamedTuple):
    """What goes on from something: by itself, and behind that."""

    alone: Example
    behind: Example


Making = Callable[[], Later]


def context_gain(passing: Pass, found: list[Later]) -> float | None:
    """Mean loss alone less mean loss with the context; None where nothing goes on from anything."""
    if not found:
        return None
    groups = [0] * len(found)
    alone = passing.sums([later.alone for later in found], groups, 1)
    behind = passing.sums([later.behind for later in found], groups, 1) if alone else None
    return None if alone is None or behind is None else alone.loss - behind.loss


def laters(examples: Examples, bos: int | None, longest: int, *, rows_too: bool) -> list[Later]:
    """At most so many of what goes on from something, that the model can read with its context."""
    all_of_them = [*_turns(examples, bos, longest), *_neighbours(examples, bos, longest, rows_too=rows_too)]
    places = np.linspace(0, len(all_of_them) - 1, min(MOST, len(all_of_them))).round().astype(int)
    return [all_of_them[place]() for place in places.tolist()]


def _turns(examples: Examples, bos: int | None, longest: int) -> Iterator[Making]:
    """Replies of a conversation behind its first one."""
    for example in examples:
        if example.trained is None:
            continue
        edges = np.flatnonzero(np.diff(np.concatenate([[0], example.trained, [0]]).astype(np.int8)))
        for (_, before), (start, end) in pairwise(edges.reshape(-1, 2).tolist()):
            if not longest or end <= longest:
                yield partial(_turn, example, before, start, end, bos)


def _turn(example: Example, before: int, start: int, end: int, bos: int | None) -> Later:
    """The reply from `start` to `end`, and what was said since the reply before it."""
    head, said = _head(example.ids, bos), example.ids[before:end]
    alone = np.concatenate([head, said])
    return Later(
        _last(example, alone, end - start),
        _last(example, example.ids[:end], end - start),
    )


def _neighbours(examples: Examples, bos: int | None, longest: int, *, rows_too: bool) -> Iterator[Making]:
    """Blocks and, where asked for, rows behind those that they go on from."""
    lengths, sources = examples.lengths(), examples.source_of_each()
    counts = [rows_too or isinstance(source, TextSource) for source in examples.sources]
    for number, other in enumerate(examples.neighbours()):
        if other < 0 or (longest and lengths[number] + lengths[other] > longest):
            continue
        if counts[sources[number]]:
            yield partial(_behind, examples, number, other, bos)


def _behind(examples: Examples, number: int, other: int, bos: int | None) -> Later:
    earlier, example = examples[number], examples[other]
    labels = np.ones(len(example.ids), bool) if example.trained is None else example.trained
    labels = np.concatenate([[False], labels[1:]])  # alone, nothing stands before the first to predict it from
    opening = len(_head(example.ids, bos))
    ids = np.concatenate([earlier.ids, example.ids[opening:]])
    flags = np.concatenate([np.zeros(len(earlier.ids), bool), labels[opening:]])
    return Later(Example(example.ids, labels, example.source, 0), Example(ids, flags, example.source, 0))


def _head(ids: Ids, bos: int | None) -> Ids:
    """The start token, where one stands there."""
    return ids[:1] if bos is not None and len(ids) and int(ids[0]) == bos else ids[:0]


def _last(example: Example, ids: Ids, count: int) -> Example:
    """An example of which the last so many tokens count."""
    flags: Ids = np.zeros(len(ids), bool)
    flags[len(ids) - count :] = True
    return Example(ids, flags, example.source, example.number)
