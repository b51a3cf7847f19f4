"""Evaluation batches: examples of similar length, up to the limits of a batch."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from training_pro.data.examples import Example
from training_pro.engine.compute import ModelCapabilities
from training_pro.engine.compute.loss import FullLogitsLoss
from training_pro.engine.inference.eval_loop import BatchLimit, EvalLoop, GroupSums


def batch_lengths(limit, *example_lengths, packed=False):
    """Lengths of the examples in each batch."""
    examples = [Example(np.zeros(n, np.int32), None, None, 0) for n in example_lengths]
    batches = EvalLoop(None, ModelCapabilities(FullLogitsLoss(), packed=packed), limit, lambda: False)._batches(
        examples
    )
    return [[example_lengths[index] for index in batch] for batch in batches]


@pytest.mark.parametrize("packed", [False, True])
def test_batches_of_examples_start_with_the_longest(packed):
    assert batch_lengths(BatchLimit(examples=2), 3, 9, 4, 7, 5, packed=packed) == [[9, 7], [5, 4], [3]]
    assert batch_lengths(BatchLimit(examples=2), packed=packed) == []


def test_the_token_limit_counts_padding():
    assert batch_lengths(BatchLimit(tokens=20), 3, 9, 4, 7, 5) == [[9, 7], [5, 4, 3]]
    assert batch_lengths(BatchLimit(tokens=14), 7, 7, 6, 1) == [[7, 7], [6, 1]]
    assert batch_lengths(BatchLimit(tokens=20), 3, 9, 4, 7, 5, packed=True) == [[9, 7], [5, 4, 3]]
    assert batch_lengths(BatchLimit(tokens=21), 9, 7, 5, 2, packed=True) == [[9, 7, 5], [2]]
    assert batch_lengths(BatchLimit(tokens=21), 9, 7, 5, 2) == [[9, 7], [5, 2]]


def test_an_example_above_the_limit_is_alone():
    assert batch_lengths(BatchLimit(tokens=8), 20, 12, 4, 4) == [[20], [12], [4, 4]]


def test_groups_are_merged():
    sums = GroupSums(np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0]), np.array([2.0, 2.0, 4.0]))
    grouped = sums.merge_groups(np.array([0, 0, 1]), 2)
    assert [grouped.figures(n) for n in (0, 1)] == [
        {"tokens": 4, "loss": 0.75, "right": 0.25},
        {"tokens": 4, "loss": 1.0, "right": 0.25},
    ]
    assert grouped.loss == sums.loss


def test_an_evaluation_that_did_not_fit_leaves_nothing_in_memory(monkeypatch):
    """Otherwise the next step would run out of memory and split its batches from then on."""
    refs = []

    def run_out_of_memory(self, sums, part):
        large = torch.zeros(1000)
        refs.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(EvalLoop, "_add_part", run_out_of_memory)
    eval_loop = EvalLoop(None, ModelCapabilities(FullLogitsLoss(), packed=True), BatchLimit(), lambda: False)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            eval_loop.sums([Example(np.zeros(3, np.int32), None, None, 0)], [0], 1)
        assert [ref() for ref in refs] == [None]
    finally:
        gc.enable()
