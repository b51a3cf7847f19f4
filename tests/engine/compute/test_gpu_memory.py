"""A finished job leaves nothing in memory, even without a run of Python's garbage collector."""

from __future__ import annotations

import gc
import weakref
from contextlib import suppress

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Step
from training_pro.engine.compute import explain_out_of_memory
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.tiny import watched_job


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive():
    """All living trainers and optimizers; they reference the LoRA and the model."""
    kinds = torch.optim.Optimizer
    return {id(o) for o in gc.get_objects() if type(o).__name__ == "RunTrainer" or isinstance(o, kinds)}


@pytest.mark.parametrize("ends_by", ["itself", "an error", "a probe"])
def test_trainer_and_optimizer_are_freed_with_the_run(place, no_collection, ends_by):
    before, during = alive(), []

    def watch(job, event):
        if isinstance(event, Step):
            during.append(len(alive() - before))
            if ends_by == "an error":
                raise ValueError("no such luck")

    job = watched_job(watch)
    if ends_by == "a probe":
        PeftEngine().probe(place.settings(), place.host(), job)
    else:
        with suppress(ValueError):
            place.train(job=job, max_steps=1)
        assert during[0] >= 2
    assert alive() <= before


@pytest.mark.parametrize(
    "error",
    [
        torch.OutOfMemoryError("CUDA out of memory"),
        MemoryError(),
        RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"),
    ],
)
def test_a_failed_batch_is_freed_before_free_memory_is_reported(no_collection, error):
    """Otherwise the message counts it as model and LoRA, and the GPU stays full until the next collection."""
    refs, still = [], []

    def step():
        large = torch.zeros(1000)
        refs.append(weakref.ref(large))
        raise error

    def explain():
        still.extend(ref() for ref in refs)
        return ModelError("Out of memory")

    with pytest.raises(ModelError, match="Out of memory"), explain_out_of_memory(explain):
        step()
    assert still == [None]
