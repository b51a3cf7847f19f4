"""The order in which examples are learned: the same for the same seed, a new one each epoch."""

from __future__ import annotations

from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from ..chunking import Ints


class BatchItem(NamedTuple):
    """An example by its number; one that `joins` is packed with the example before it and attends to it."""

    number: int
    joins: bool = False


def shuffle(numbers: Ints, seed: int, epoch: int) -> Ints:
    """Shuffle the examples with the seed and the epoch."""
    return _epoch_rng(seed, epoch).permutation(numbers)


def order_by_length(numbers: Ints, lengths: Sequence[int], batch: int, seed: int, epoch: int) -> Ints:
    """Shuffle batches of similar length; the longest batch comes first, an incomplete one last."""
    rng = _epoch_rng(seed, epoch)
    mixed = rng.permutation(numbers)  # examples of equal length meet others each epoch
    longest_first: Ints = mixed[np.argsort(-np.asarray(lengths)[mixed], kind="stable")]
    full_count, rest = divmod(len(numbers), batch)
    if not full_count:
        return longest_first
    # The incomplete batch is taken out at a random place, or the shortest examples would always be in it.
    cut = batch * (int(rng.integers(1, full_count + 1)) if rest else full_count)
    full = np.concatenate([longest_first[:cut], longest_first[cut + rest :]]).reshape(full_count, batch)
    # The longest batch first: what doesn't fit into memory shows at the first step, not after hours.
    order = np.concatenate([[0], 1 + rng.permutation(full_count - 1)])
    return np.concatenate([full[order].reshape(-1), longest_first[cut : cut + rest]])


def order_in_pairs(
    numbers: Ints,
    successors: Sequence[int],
    lengths: Sequence[int],
    max_tokens: int,
    batch: int,
    seed: int,
    epoch: int,
) -> list[BatchItem]:
    """Order adjacent examples in pairs of similar length; examples without a partner are paired with each other.

    `successors` holds for each example the number of the one that begins where it ends (-1: none), `max_tokens`
    is how many tokens fit in a row (0: no limit).
    """
    adjacent, single = find_pairs(numbers, successors, lengths, max_tokens)
    couples = [[BatchItem(a), BatchItem(b, joins=True)] for a, b in adjacent]
    couples += [[BatchItem(a), BatchItem(b)] for a, b in zip(single[::2], single[1::2], strict=False)]
    weights = [sum(lengths[item.number] for item in couple) for couple in couples]
    # A batch of pairs of similar length is packed into rows of similar length.
    order = order_by_length(np.arange(len(couples)), weights, batch // 2, seed, epoch)
    rest = [BatchItem(single[-1])] if len(single) % 2 else []
    return [item for number in order for item in couples[number]] + rest


def find_pairs(
    numbers: Ints, successors: Sequence[int], lengths: Sequence[int], max_tokens: int
) -> tuple[list[tuple[int, int]], list[int]]:
    """Pair each example with its successor, beginning at the first one; returns the pairs and the rest."""
    couples, single = [], []
    remaining = {int(number) for number in numbers}
    for number in sorted(remaining):
        if number not in remaining:
            continue
        remaining.remove(number)
        successor = successors[number]
        if successor in remaining and (not max_tokens or lengths[number] + lengths[successor] <= max_tokens):
            remaining.remove(successor)
            couples.append((number, successor))
        else:
            single.append(number)
    return couples, single


def _epoch_rng(seed: int, epoch: int) -> np.random.Generator:
    # PCG64 by its name: numpy may change what default_rng takes, and a resumed run needs the same order.
    return np.random.Generator(np.random.PCG64([seed, epoch]))
