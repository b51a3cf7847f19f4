"""A finished job leaves nothing in memory, even without a run of Python's garbage collector."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Job
from training_pro.engine.compute import oom
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training.trainer import RunTrainer

CPU = torch.device("cpu")


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def trainers():
    """All living trainers; each references the LoRA, its optimizer and the model."""
    return [obj for obj in gc.get_objects() if type(obj) is RunTrainer]


@pytest.mark.parametrize("fails", [False, True])
def test_trainer_and_optimizer_are_freed_with_the_run(place, monkeypatch, no_collection, fails):
    optimizers = []
    create = RunTrainer.create_optimizer

    def created(self, *args):
        optimizer = create(self, *args)
        optimizers.append(weakref.ref(optimizer))
        if fails:
            raise ValueError("no such luck")
        return optimizer

    monkeypatch.setattr(RunTrainer, "create_optimizer", created)
    error = None
    try:
        place.train()
    except ValueError as raised:
        error = raised
    assert (error is not None) is fails
    assert trainers() == []
    assert optimizers
    assert all(ref() is None for ref in optimizers)


def test_a_probe_frees_its_memory(place, monkeypatch, no_collection):
    seen = []
    monkeypatch.setattr(oom, "free_memory", lambda: seen.append("freed"))
    PeftEngine().probe(place.settings(), place.host(), Job("probe", "a test"))
    assert seen == ["freed"]


def test_a_failed_batch_is_freed_before_free_memory_is_reported(no_collection):
    """Otherwise the message counts it as model and LoRA, and the GPU stays full until the next collection."""
    refs, alive = [], []

    def step():
        large = torch.zeros(1000)
        refs.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def remedies(machine):
        alive.extend(ref() for ref in refs)
        return []

    with (
        pytest.raises(ModelError, match="Out of memory"),
        oom.explain_out_of_memory(lambda: oom.out_of_memory_error(CPU, remedies)),
    ):
        step()
    assert alive == [None]


def test_the_gpu_cache_is_emptied(monkeypatch):
    calls = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: calls.append("emptied"))
    with oom.free_memory_afterwards():
        assert calls == []
    assert calls == ["emptied"]
