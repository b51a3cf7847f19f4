"""Orders of the examples: each example once, the same for the same seed, similar lengths together."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.data.examples import batch_order

LENGTHS = [7, 3, 9, 3, 5, 9, 1, 7, 2, 5, 4]


def by_length(epoch=0, batch=4, lengths=LENGTHS, seed=42):
    return batch_order.order_by_length(np.arange(len(lengths)), lengths, batch, seed, epoch).tolist()


def batches(order, size=4):
    return [order[n : n + size] for n in range(0, len(order), size)]


def test_shuffled_is_another_order_each_epoch_and_the_same_for_the_same_seed():
    orders = [batch_order.shuffle(np.arange(50), 42, epoch).tolist() for epoch in range(3)]
    assert all(sorted(order) == list(range(50)) for order in orders)
    assert orders[0] != orders[1] != orders[2]
    assert batch_order.shuffle(np.arange(50), 42, 1).tolist() == orders[1]
    assert batch_order.shuffle(np.arange(50), 43, 1).tolist() != orders[1]
    assert batch_order.shuffle(np.arange(6), 42, 0).tolist() == [3, 2, 5, 4, 1, 0]


@pytest.mark.parametrize("epoch", range(5))
def test_batches_have_similar_lengths_with_the_longest_first_and_an_incomplete_one_last(epoch):
    order = by_length(epoch)
    assert sorted(order) == list(range(len(LENGTHS)))
    order_batches = batches(order)
    assert [len(b) for b in order_batches] == [4, 4, 3]
    lengths = [[LENGTHS[n] for n in b] for b in order_batches]
    assert max(LENGTHS) in lengths[0] or max(LENGTHS) in lengths[-1]
    for batch_lengths in lengths:  # the ranges of the batches do not overlap
        low, high = min(batch_lengths), max(batch_lengths)
        assert not any(low < length < high for other in lengths if other is not batch_lengths for length in other)


def test_the_longest_batch_comes_first_where_all_are_full():
    lengths = list(range(1, 41))
    order = by_length(lengths=lengths)
    assert sorted(lengths[n] for n in order[:4]) == [37, 38, 39, 40]
    longest = [max(lengths[n] for n in b) for b in batches(order)]
    assert sorted(longest) == list(range(4, 41, 4))
    assert longest[1:] != sorted(longest[1:], reverse=True)  # whole batches are shuffled


def test_examples_of_equal_length_share_batches_with_others_in_another_epoch():
    orders = [[tuple(sorted(b)) for b in batches(by_length(e, lengths=[5] * 40))] for e in range(2)]
    assert set(orders[0]) != set(orders[1])


@pytest.mark.parametrize("count", [0, 1, 3, 4, 5])
def test_few_examples(count):
    assert sorted(by_length(lengths=LENGTHS[:count])) == list(range(count))
