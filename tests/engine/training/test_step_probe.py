"""Probe of one step: it reports time and memory of a run, and changes nothing."""

from __future__ import annotations

import random
import sys
import time
from contextlib import contextmanager, suppress

import numpy as np
import pytest
import torch
from training_pro.core.errors import ModelError, SavingError
from training_pro.core.jobs import (
    EvaluationDone,
    Job,
    JobEnded,
    ProbeDone,
    SampleGenerated,
    event_text,
    probe_extra_times,
)
from training_pro.data.examples import Examples
from training_pro.engine.compute import telemetry
from training_pro.engine.compute.loss import ChunkedLoss
from training_pro.engine.inference.eval_loop import EvalLoop
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.plan import build_run_plan
from training_pro.engine.training import step_probe
from training_pro.tests.tiny import read_tree


@pytest.fixture
def probed(place):
    """A probe, with the state of model and files before and after it."""
    host = place.host()
    model = host.loaded_model().model
    before, files_before = _state(model), read_tree(place.folders.user_data)
    job = Job("probe", "a test")
    ended = PeftEngine().probe(place.settings(accumulation=2, epochs=3, batch_size=3), host, job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, ProbeDone))
    return event, ended, (before, files_before), (_state(model), read_tree(place.folders.user_data))


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


def test_a_probe_reports_the_run_and_changes_nothing(probed):
    event, ended, (before, files), (after, files_after) = probed
    assert (event.batch_size, event.steps) == (3, 9)
    assert 0 < event.seconds < event.run_seconds
    assert 60 < event.tokens <= 96
    assert isinstance(ended, JobEnded)
    assert " for the run" in event_text(event) and ended.text == "Nothing changed."
    assert files == files_after
    for old, new in zip(before[0].values(), after[0].values(), strict=True):
        assert torch.equal(old, new)
    assert before[1:5] == after[1:5]
    assert torch.equal(before[5], after[5])


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="only Linux tells the peak")
def test_memory_is_measured_and_reported(probed):
    event = probed[0]
    assert event.peak > 0
    assert event.expected > 0
    assert "peak memory in addition to the model: " in event_text(event)


def test_timing_on_a_gpu_synchronizes_before_and_after(monkeypatch):
    """The GPU may still run the warm-up step when Python is done with it."""
    calls = []
    monkeypatch.setattr(torch.cuda, "synchronize", lambda device: calls.append("waited"))
    step_probe._measure_seconds(lambda: calls.append("told to do the step"), torch.device("cuda", 0))
    assert calls == ["waited", "told to do the step", "waited"]


def test_on_windows_the_probe_has_the_memory_limit_of_a_run(place, monkeypatch):
    """Otherwise a step that a run would split would spill into system memory, many times slower."""
    inside, measured = [], []

    @contextmanager
    def limited(device):
        inside.append(device)
        yield
        inside.clear()

    probe_batch = step_probe._probe_longest_batch
    monkeypatch.setattr(step_probe, "limit_vram", limited)
    monkeypatch.setattr(
        step_probe, "_probe_longest_batch", lambda *args: (measured.extend(inside), probe_batch(*args))[1]
    )
    PeftEngine().probe(place.settings(), place.host(), Job("probe", "a test"))
    assert measured == [torch.device("cpu")]


def test_without_a_peak_the_step_is_still_timed(place, monkeypatch, tmp_path):
    monkeypatch.setattr(telemetry, "CLEAR_REFS", tmp_path / "not there" / "clear_refs")
    job = Job("probe", "a test")
    PeftEngine().probe(place.settings(), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, ProbeDone))
    assert (event.peak, event.seconds > 0) == (0, True)
    assert " per step, about " in event_text(event) and "above the model" not in event_text(event)


def test_a_probe_has_no_folder_that_could_be_lost(with_lora, monkeypatch):
    used = []
    monkeypatch.setattr(
        step_probe, "build_run_plan", lambda *parts: used.append(parts[-1]) or build_run_plan(*parts)
    )
    PeftEngine().probe(with_lora.settings(), with_lora.host(), Job("probe", "a test"))
    before = read_tree(with_lora.folders.user_data)
    with suppress(OSError):  # the folder does not exist
        used[0].discard()
    with pytest.raises(SavingError):
        used[0].open(with_lora.settings())
    assert read_tree(with_lora.folders.user_data) == before and with_lora.weights()


EXTRAS = {"eval_share": 0.2, "eval_every": 2, "sample_every": 2, "sample_prompts": ["The keeper"], "max_steps": 3}


def probe(place, **more):
    job = Job("probe", "a test")
    PeftEngine().probe(place.settings(**more), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, ProbeDone))
    return event, event_text(event)


def test_evaluations_and_answers_are_counted_as_in_the_run_and_the_model_is_unchanged(place):
    host = place.host()
    before, files = _state(host.loaded_model().model), read_tree(place.folders.user_data)
    job, run = Job("probe", "a test"), Job("training", "a test")
    PeftEngine().probe(place.settings(**EXTRAS), host, job)
    after = _state(host.loaded_model().model)
    assert all(map(torch.equal, before[0].values(), after[0].values()))
    assert (before[1:5], files) == (after[1:5], read_tree(place.folders.user_data))
    assert torch.equal(before[5], after[5])
    (event,) = (e for e in job.log.since(0) if isinstance(e, ProbeDone))
    place.train(host, job=run, **EXTRAS)
    event_types = [type(e) for e in run.log.since(0)]
    assert (event.evaluations, event.answers) == (
        event_types.count(EvaluationDone),
        event_types.count(SampleGenerated),
    )
    assert min(event.evaluation_seconds, event.answer_seconds) > 0
    assert f" for {event.evaluations} evaluations, " in event_text(event)
    assert f" for {event.answers} samples; " in event_text(event)


def test_extras_that_do_not_exist_or_fail_are_not_mentioned(place, monkeypatch):
    event, words = probe(place)
    assert (probe_extra_times(event), event.evaluations, event.answers) == ([], 0, 0)
    assert " more" not in words

    def fails(*_, **__):
        raise RuntimeError("no")

    monkeypatch.setattr("training_pro.engine.inference.sample_generation.generate_ids", fails)
    monkeypatch.setattr(EvalLoop, "estimate_seconds", fails)
    event, words = probe(place, **EXTRAS)
    assert probe_extra_times(event) == []
    assert " for the run; " in words


class Clock:
    """A clock that only the tests advance."""

    def __init__(self, monkeypatch):
        self.now = 0.0
        monkeypatch.setattr(time, "perf_counter", lambda: self.now)


@pytest.mark.parametrize("packing", ["auto", "off"])
def test_the_time_of_an_evaluation_is_estimated_by_tokens(place, monkeypatch, packing):
    clock, seen, add_part = Clock(monkeypatch), [], EvalLoop._add_part

    def add(self, sums, part):
        add_part(self, sums, part)
        seen.append(self._batch_tokens([example for example, _ in part]))
        clock.now += seen[-1]

    monkeypatch.setattr(EvalLoop, "_add_part", add)
    options = {"eval_share": 0.5, "batch_size": 1, "packing": packing, "max_steps": 1, "recall_passages": 0}
    estimate = probe(place, **options)[0].evaluation_seconds
    assert len(seen) == 3
    seen.clear()
    place.train(**options)
    assert estimate == sum(seen) / 2  # one evaluation before the first step, one after it


def test_the_time_of_an_answer_is_estimated_by_its_beginning(place, monkeypatch):
    clock, lengths = Clock(monkeypatch), []

    def generate(model, ids, question, *_):
        lengths.append(ids.shape[1])
        clock.now += ids.shape[1] + question.max_tokens
        return torch.cat([ids, torch.zeros(1, question.max_tokens, dtype=torch.long)], dim=1)

    monkeypatch.setattr("training_pro.engine.inference.sample_generation.generate_ids", generate)
    event, _ = probe(place, sample_every="epoch", sample_prompts=["The keeper of the light", "A"])
    assert event.answers == 4
    assert event.answer_seconds == lengths[0] + 100
    assert len(set(lengths)) == 1


def test_layers_are_counted_without_loading_the_model(place):
    host = place.host()
    counts = PeftEngine().layers(host)
    assert host._loaded is None
    outer = {"embed_tokens": 1, "lm_head": 1}
    assert counts == dict.fromkeys(sorted(counts), 2) | outer
    assert {"q_proj", "down_proj"} <= counts.keys()
    host.loaded_model()
    assert PeftEngine().layers(host) == counts


@pytest.fixture
def small_memory(monkeypatch):
    """Make batches of more than 70 tokens run out of memory, as on a GPU."""
    seen, original = [], ChunkedLoss.__call__

    def limited(self, model, inputs, labels):
        seen.append(inputs["input_ids"].numel())
        if inputs["input_ids"].numel() > 70:
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")
        return original(self, model, inputs, labels)

    monkeypatch.setattr(ChunkedLoss, "__call__", limited)
    return seen


def test_a_batch_that_does_not_fit_is_probed_in_halves(place, small_memory):
    job = Job("probe", "a test")
    PeftEngine().probe(place.settings(batch_size=4, packing="off"), place.host(), job)
    (event,) = (e for e in job.log.since(0) if isinstance(e, ProbeDone))
    assert (event.too_large, event.batch_size, event.largest_batch) == (4, 2, 2)
    assert not event.fits
    assert event.fitting == {"batch_size": 2, "accumulation": 2}
    assert "a batch of 4 examples does not fit, so a run splits it into batches of 2" in event_text(event)
    assert "try batch_size = 2, accumulation = 2" in event_text(event)
    assert max(small_memory) > 70


def test_one_example_that_does_not_fit_is_an_error_with_remedies(place, small_memory):
    with pytest.raises(ModelError, match=r"Out of memory.*To fix this, try"):
        PeftEngine().probe(place.settings(cutoff=128, batch_size=2), place.host(), Job("probe", "a test"))


def test_the_longest_examples_are_found_in_one_pass(place, monkeypatch):
    calls, original = [], Examples.lengths

    def counted(self):
        calls.append(1)
        return original(self)

    monkeypatch.setattr(Examples, "lengths", counted)
    PeftEngine().probe(place.settings(cutoff=16), place.host(), Job("probe", "a test"))
    assert len(calls) < 12
