"""How examples are put together to be measured: those of like length, as many as may go through at once."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from training_pro.data.examples.examples import Example
from training_pro.engine.compute.capabilities import Ways
from training_pro.engine.compute.loss import WholeHead
from training_pro.engine.inference.eval_loop import AtOnce, Pass, Sums


def lengths(most, *of_examples, packed=False):
    """Of the examples in each batch."""
    examples = [Example(np.zeros(n, np.int32), None, None, 0) for n in of_examples]
    batches = Pass(None, Ways(WholeHead(), packed=packed), most, lambda: False)._batches(examples)
    return [[of_examples[number] for number in batch] for batch in batches]


@pytest.mark.parametrize("packed", [False, True])
def test_so_many_examples_the_longest_first(packed):
    assert lengths(AtOnce(examples=2), 3, 9, 4, 7, 5, packed=packed) == [[9, 7], [5, 4], [3]]
    assert lengths(AtOnce(examples=2), packed=packed) == []


def test_so_many_tokens_of_which_padding_is_a_part():
    assert lengths(AtOnce(tokens=20), 3, 9, 4, 7, 5) == [[9, 7], [5, 4, 3]]
    assert lengths(AtOnce(tokens=14), 7, 7, 6, 1) == [[7, 7], [6, 1]]
    assert lengths(AtOnce(tokens=20), 3, 9, 4, 7, 5, packed=True) == [[9, 7], [5, 4, 3]]
    assert lengths(AtOnce(tokens=21), 9, 7, 5, 2, packed=True) == [[9, 7, 5], [2]]
    assert lengths(AtOnce(tokens=21), 9, 7, 5, 2) == [[9, 7], [5, 2]]


def test_one_that_is_too_long_goes_alone():
    assert lengths(AtOnce(tokens=8), 20, 12, 4, 4) == [[20], [12], [4, 4]]


def test_groups_of_groups():
    sums = Sums(np.array([1.0, 2.0, 4.0]), np.array([0.0, 1.0, 1.0]), np.array([2.0, 2.0, 4.0]))
    grouped = sums.grouped(np.array([0, 0, 1]), 2)
    assert [grouped.known(n) for n in (0, 1)] == [
        {"tokens": 4, "loss": 0.75, "right": 0.25},
        {"tokens": 4, "loss": 1.0, "right": 0.25},
    ]
    assert grouped.loss == sums.loss


def test_an_evaluation_that_did_not_fit_leaves_nothing_in_memory(monkeypatch):
    """Else the next step finds no room, and is done in halves from then on."""
    held = []

    def too_much(self, found, examples, groups):
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    monkeypatch.setattr(Pass, "_add_at_once", too_much)
    passing = Pass(None, Ways(WholeHead(), packed=True), AtOnce(), lambda: False)
    gc.collect()
    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            passing.sums([Example(np.zeros(3, np.int32), None, None, 0)], [0], 1)
        assert [one() for one in held] == [None]
    finally:
        gc.enable()
