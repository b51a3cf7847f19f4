"""What a job leaves in memory when it is over: nothing, also where Python's own collection does not come by."""

from __future__ import annotations

import gc
import weakref

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs.job import Job
from training_pro.engine.compute import gpu_memory
from training_pro.engine.compute.step_errors import told_where_memory_runs_out
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
    """Each holds the LoRA, its optimizer, and the model."""
    return [thing for thing in gc.get_objects() if type(thing) is RunTrainer]


@pytest.mark.parametrize("fails", [False, True])
def test_the_trainer_and_its_optimizer_go_with_the_run(place, monkeypatch, no_collection, fails):
    made = []
    create = RunTrainer.create_optimizer

    def created(self, *args):
        optimizer = create(self, *args)
        made.append(weakref.ref(optimizer))
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
    assert made
    assert all(one() is None for one in made)


def test_a_probe_frees_what_it_took(place, monkeypatch, no_collection):
    seen = []
    monkeypatch.setattr(gpu_memory, "free_memory", lambda: seen.append("freed"))
    PeftEngine().probe(place.settings(), place.host(), Job("probe", "a test"))
    assert seen == ["freed"]


def test_what_did_not_fit_is_gone_before_it_is_told_what_is_left(no_collection):
    """Else the figures count it among model and LoRA, and a card stays full until somebody collects."""
    held, left = [], []

    def step():
        large = torch.zeros(1000)
        held.append(weakref.ref(large))
        raise torch.OutOfMemoryError("CUDA out of memory")

    def remedies(machine):
        left.extend(one() for one in held)
        return []

    with pytest.raises(ModelError, match="Out of memory"), told_where_memory_runs_out(CPU, remedies):
        step()
    assert left == [None]


def test_the_cards_own_reserve_goes_back(monkeypatch):
    asked = []
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "empty_cache", lambda: asked.append("emptied"))
    with gpu_memory.freed_afterwards():
        assert asked == []
    assert asked == ["emptied"]
