"""Batches as exact tensors: padding, mask, labels, and the count of what is no padding."""

from __future__ import annotations

import numpy as np
import torch
from training_pro.data.examples.examples import Example
from training_pro.tests.engine.batches import padded


def batch(*rows):
    return padded([Example(np.array(ids, np.int32), None, None, 0) for ids in rows])


def test_what_is_not_learned_is_hidden():
    ids, trained = np.array([5, 6, 7], np.int32), np.array([True, False, True])
    assert padded([Example(ids, trained, None, 0)])["labels"].tolist() == [[-100, -100, 7]]


def test_rows_of_unequal_length():
    made = batch([5, 6, 7, 8], [9, 5])
    tokens = made.pop("tokens")
    expected = {
        "input_ids": torch.tensor([[5, 6, 7, 8], [9, 5, 0, 0]]),
        "attention_mask": torch.tensor([[1, 1, 1, 1], [1, 1, 0, 0]]),
        "labels": torch.tensor([[-100, 6, 7, 8], [-100, 5, -100, -100]]),
    }
    assert made.keys() == expected.keys()
    for name, tensor in expected.items():
        assert made[name].dtype == torch.int64
        assert torch.equal(made[name], tensor), name
    assert tokens == 6


def test_an_id_that_also_pads_is_learned_in_the_text():
    made = batch([0, 0, 3], [0])
    assert made["labels"].tolist() == [[-100, 0, 3], [-100, -100, -100]]
    assert made["attention_mask"].tolist() == [[1, 1, 1], [1, 0, 0]]


def test_what_was_collated_is_a_copy():
    ids = np.array([1, 2, 3], np.int32)
    made = padded([Example(ids, None, None, 0)])
    made["input_ids"] += 1
    assert ids.tolist() == [1, 2, 3]
    assert made["labels"].tolist() == [[-100, 2, 3]]
