"""One step is tried: it says what a run would take, and nothing is changed by it."""

from __future__ import annotations

import random
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import console
from training_pro.core.jobs.events import Ended, Evaluated, Probed, Sampled
from training_pro.core.jobs.job import Job
from training_pro.data.examples.examples import Examples
from training_pro.engine.compute import peak_memory
from training_pro.engine.compute.loss import SupervisedOnly
from training_pro.engine.inference.eval_loop import Pass
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.plan.run_plan import blueprint
from training_pro.engine.training import step_probe
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
    assert " for the run" in ended.text
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
    assert "above the model (expected" in console.Narrator().line(event)


def test_the_time_of_a_step_on_a_card_begins_when_the_one_before_it_is_over(monkeypatch):
    """A card goes on with the first step, which warms up, when Python is long done with it."""
    done = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: done.append("waited"))
    step_probe._seconds_of(lambda: done.append("told to do the step"), torch.device("cuda", 0))
    assert done == ["waited", "told to do the step", "waited"]


def test_on_windows_a_step_is_tried_within_the_memory_that_a_run_will_keep_to(place, monkeypatch):
    """Else one that a run does in halves would be tried in the system's memory, many times slower."""
    inside, measured = [], []

    @contextmanager
    def kept(device):
        inside.append(device)
        yield
        inside.clear()

    tried = step_probe._tried_batch
    monkeypatch.setattr(step_probe, "kept_on_the_card", kept)
    monkeypatch.setattr(step_probe, "_tried_batch", lambda *args: (measured.extend(inside), tried(*args))[1])
    PeftEngine().probe(place.settings(), place.host(), Job("probe", "a test"))
    assert measured == [torch.device("cpu")]


def test_where_the_peak_cannot_be_asked_for_the_step_is_tried_all_the_same(place, monkeypatch, tmp_path):
    monkeypatch.setattr(peak_memory, "NEW_PEAK", tmp_path / "not there" / "clear_refs")
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    assert (event.peak, event.seconds > 0) == (0, True)
    assert " a step, about " in ended.text and "above the model" not in ended.text


def test_a_probe_has_no_folder_in_which_something_could_be_lost(with_lora, monkeypatch):
    used = []
    monkeypatch.setattr(step_probe, "blueprint", lambda *parts: used.append(parts[-1]) or blueprint(*parts))
    PeftEngine().probe(with_lora.settings(), with_lora.host(), Job("probe", "a test"))
    before = tree(with_lora.folders.user_data)
    with suppress(OSError):  # there is nothing to go through
        used[0].discard()
    with pytest.raises(SavingError):
        used[0].open(with_lora.settings())
    assert tree(with_lora.folders.user_data) == before and with_lora.weights()


ASIDE = {"eval_share": 0.2, "eval_every": 2, "sample_every": 2, "sample_prompts": ["The keeper"], "max_steps": 3}


def probe(place, **more):
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(**more), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    return event, ended.text


def test_evaluations_and_answers_are_as_many_as_the_run_then_has_and_nothing_of_the_model_changes(place):
    host = place.host()
    before, files = _state(host.loaded().model), tree(place.folders.user_data)
    job, run = Job("probe", "a test"), Job("training", "a test")
    PeftEngine().probe(place.settings(**ASIDE), host, job)
    after = _state(host.loaded().model)
    assert all(map(torch.equal, before[0].values(), after[0].values()))
    assert (before[1:5], files) == (after[1:5], tree(place.folders.user_data))
    assert torch.equal(before[5], after[5])
    (event,) = (e for e in job.log.since(0) if isinstance(e, Probed))
    place.train(host, job=run, **ASIDE)
    had = [type(e) for e in run.log.since(0)]
    assert (event.evaluations, event.answers) == (had.count(Evaluated), had.count(Sampled))
    assert min(event.evaluation_seconds, event.answer_seconds) > 0
    assert " evaluations about " in console.Narrator().line(event)
    assert " answers at most about " in console.Narrator().line(event)


def test_where_there_are_none_or_they_fail_nothing_is_said_of_their_time(place, monkeypatch):
    event, words = probe(place)
    assert (event.beside, event.evaluations, event.answers) == ([], 0, 0)
    assert " more" not in words

    def fails(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr("training_pro.engine.inference.sample_generation.generated", fails)
    monkeypatch.setattr(Pass, "expected_seconds", fails)
    event, words = probe(place, **ASIDE)
    assert event.beside == []
    assert " for the run; " in words


class Clock:
    """A clock that only work moves, a second a token."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_the_time_of_all_is_told_by_the_tokens_of_a_part(place, monkeypatch, packing):
    clock, seen, own = Clock(monkeypatch), [], Pass._add_at_once

    def add(self, found, examples, groups):
        own(self, found, examples, groups)
        seen.append(self._size(examples))
        clock.now += seen[-1]

    monkeypatch.setattr(Pass, "_add_at_once", add)
    asked = {"eval_share": 0.5, "batch_size": 1, "packing": packing, "max_steps": 1}
    told = probe(place, **asked)[0].evaluation_seconds
    assert len(seen) == 3
    seen.clear()
    place.train(**asked)
    assert told == sum(seen) / 2  # before the first step and after it


def test_the_time_of_an_answer_is_told_by_its_beginning(place, monkeypatch):
    clock, lengths = Clock(monkeypatch), []

    def generated(model, ids, question, *_):
        lengths.append(ids.shape[1])
        clock.now += ids.shape[1] + question.max_tokens
        return torch.cat([ids, torch.zeros(1, question.max_tokens, dtype=torch.long)], dim=1)

    monkeypatch.setattr("training_pro.engine.inference.sample_generation.generated", generated)
    event, _ = probe(place, sample_every="epoch", sample_prompts=["The keeper of the light", "A"])
    assert event.answers == 4
    assert event.answer_seconds == lengths[0] + 100
    assert len(set(lengths)) == 1


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
