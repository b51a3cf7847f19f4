"""One step is tried: it says what a run would take, and nothing is changed by it."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
from training_pro.core import narrator
from training_pro.core.errors import ModelError
from training_pro.core.events import Ended, Probed
from training_pro.core.session import Job
from training_pro.data.examples import Examples
from training_pro.engine import probing
from training_pro.engine.blueprint import blueprint
from training_pro.engine.loss import SupervisedOnly
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.tiny import tree


@pytest.fixture
def probed(place):
    """A probe of a run, and what there was before and after it."""
    host = place.host()
    model = host.loaded().model
    before, files = _state(model), tree(place.folders.user_data)
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(accumulation=2, epochs=3, batch_size=3), host, job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    return event, ended, (before, files), (_state(model), tree(place.folders.user_data))


def _state(model):
    weights = {name: value.clone() for name, value in model.state_dict().items()}
    flags = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    return (
        weights,
        flags,
        model.training,
        random.getstate(),
        np.random.get_state()[1].tolist(),
        torch.get_rng_state(),
    )


def test_it_says_what_a_run_would_take_and_changes_nothing(probed):
    event, ended, (before, files), (after, files_after) = probed
    assert (event.batch_size, event.steps) == (3, 9)
    assert 0 < event.seconds < event.run_seconds
    assert 60 < event.tokens <= 96
    assert isinstance(ended, Ended)
    assert "the run about" in ended.text
    assert files == files_after
    for was, now in zip(before[0].values(), after[0].values(), strict=True):
        assert torch.equal(was, now)
    assert before[1:5] == after[1:5]
    assert torch.equal(before[5], after[5])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the peak")
def test_memory_is_measured_and_told(probed):
    event = probed[0]
    assert event.peak > 0
    assert event.expected > 0
    assert "above the model (expected" in narrator.Narrator().line(event)


def test_where_the_peak_cannot_be_asked_for_the_step_is_tried_all_the_same(place, monkeypatch, tmp_path):
    monkeypatch.setattr(probing, "NEW_PEAK", tmp_path / "not there" / "clear_refs")
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    assert (event.peak, event.seconds > 0) == (0, True)
    assert "A step takes" in ended.text and "above the model" not in ended.text


def test_a_probe_has_no_folder_in_which_something_could_be_lost(with_lora, monkeypatch):
    used = []
    monkeypatch.setattr(probing, "blueprint", lambda *parts: used.append(parts[-1]) or blueprint(*parts))
    PeftEngine().probe(with_lora.settings(), with_lora.host(), Job("probe", "a test"))
    before = tree(with_lora.folders.user_data)
    used[0].discard()
    with pytest.raises(OSError):
        used[0].open(with_lora.settings(), [])
    assert tree(with_lora.folders.user_data) == before and with_lora.weights()


def test_layers_by_name_with_how_many_without_loading_anything(place):
    host = place.host()
    found = PeftEngine().layers(host)
    assert host._loaded is None
    assert found == dict.fromkeys(sorted(found), 2)
    assert {"q_proj", "down_proj"} <= found.keys()
    host.loaded()
    assert PeftEngine().layers(host) == found


@pytest.fixture
def small_memory(monkeypatch):
    """Batches of more tokens than fit run out of memory, as on a card."""
    seen, own = [], SupervisedOnly.__call__

    def measured(self, model, inputs, labels):
        seen.append(inputs["input_ids"].numel())
        if inputs["input_ids"].numel() > 70:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return own(self, model, inputs, labels)

    monkeypatch.setattr(SupervisedOnly, "__call__", measured)
    return seen


def test_a_batch_that_does_not_fit_is_tried_in_halves_as_a_run_does_it(place, small_memory):
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(batch_size=4, packing="off"), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    assert (event.too_large, event.batch_size, event.largest_batch) == (4, 2, 2)
    assert not event.fits
    assert event.fitting == {"batch_size": 2, "accumulation": 2}
    assert "4 examples at once do not fit, 2 do" in ended.text
    assert "try batch_size = 2, accumulation = 2" in ended.text
    assert max(small_memory) > 70


def test_one_example_that_does_not_fit_is_refused_with_what_helps(place, small_memory):
    with pytest.raises(ModelError, match=r"Out of memory.*What helps most"):
        PeftEngine().probe(place.settings(cutoff=128, batch_size=2), place.host(), Job("probe", "a test"))


def test_the_longest_are_found_without_asking_for_each(place, monkeypatch):
    asked, own = [], Examples.lengths

    def counted(self):
        asked.append(1)
        return own(self)

    monkeypatch.setattr(Examples, "lengths", counted)
    PeftEngine().probe(place.settings(cutoff=16), place.host(), Job("probe", "a test"))
    assert len(asked) < 12
