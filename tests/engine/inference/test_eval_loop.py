"""Evaluation batches: examples of similar length, up to the limits of a batch."""

from __future__ import annotations

import gc
import weakref

import numpy as np
import pytest
import torch
from training_pro.engine.compute import probe_model
from training_pro.engine.inference import eval_loop
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import make_model, random_examples


def sums_of(model, lengths, watch, packing="off", **limit):
    settings = training_settings({"name": "a", "data": ["x.txt"], "packing": packing})
    capabilities = probe_model(model, settings)
    model.register_forward_pre_hook(lambda module, args, kwargs: watch(kwargs), with_kwargs=True)
    loop = eval_loop.EvalLoop(model, capabilities, eval_loop.BatchLimit(**limit), lambda: False)
    with torch.no_grad():
        return loop.sums(random_examples(*lengths), [0] * len(lengths), 1)


@pytest.mark.parametrize(
    ("packing", "limit", "lengths", "batches"),
    [
        ("off", {"examples": 2}, [3, 9, 4, 7, 5], [[9, 7], [5, 4], [3]]),
        ("on", {"examples": 2}, [3, 9, 4, 7, 5], [[9, 7], [5, 4], [3]]),
        ("off", {"tokens": 21}, [9, 7, 5, 2], [[9, 7], [5, 2]]),  # padding counts
        ("on", {"tokens": 21}, [9, 7, 5, 2], [[9, 7, 5], [2]]),
        ("off", {"tokens": 8}, [20, 12, 4, 4], [[20], [12], [4, 4]]),  # above the limit: alone
    ],
)
def test_batches_start_with_the_longest_and_keep_the_limits(packing, limit, lengths, batches):
    seen = []

    def look(inputs):
        positions = inputs.get("position_ids", torch.zeros(1, 0))[0]
        starts = [*(positions == 0).nonzero()[:, 0].tolist(), len(positions)]
        seen.append(np.diff(starts).tolist() or inputs["attention_mask"].sum(1).tolist())

    assert sums_of(make_model("llama"), lengths, look, packing, **limit).tokens == sum(lengths) - len(lengths)
    assert seen == batches


def test_an_evaluation_that_did_not_fit_leaves_nothing_in_memory():
    """Otherwise the next step would run out of memory and split its batches from then on."""
    refs = []

    def run_out_of_memory(inputs):
        large = torch.zeros(1000)
        refs.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    gc.collect()
    gc.disable()
    try:
        with pytest.raises(torch.OutOfMemoryError):
            sums_of(make_model("llama"), [3], run_out_of_memory)
        assert [ref() for ref in refs] == [None]
    finally:
        gc.enable()
