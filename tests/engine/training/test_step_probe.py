"""Probe of one step: it reports time and memory of a run, and changes nothing."""

from __future__ import annotations

import random
import sys

import numpy as np
import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.jobs import EvaluationDone, Job, ProbeDone, SampleGenerated, event_text
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.watching import events_of
from training_pro.tests.tiny import read_tree, watched_job

EXTRAS = {"eval_share": 0.2, "eval_every": 2, "sample_every": 2, "sample_prompts": ["The keeper"], "max_steps": 3}


def probe(place, host=None, watch=lambda job, event: None, **more):
    """Probe these settings; return the measurements, and what is said of them."""
    job = watched_job(watch)
    assert PeftEngine().probe(place.settings(**more), host or place.host(), job).text == "Nothing changed."
    (event,) = events_of(job, ProbeDone)
    return event, event_text(event)


def state_of(model):
    """Weights, gradients, modes and random states, in a form that can be compared."""
    weights = {name: value.numpy().tobytes() for name, value in model.state_dict().items()}
    parameters = {name: (p.requires_grad, p.grad) for name, p in model.named_parameters()}
    states = (random.getstate(), np.random.get_state()[1].tolist(), torch.get_rng_state().tolist())
    return weights, parameters, [module.training for module in model.modules()], states


@pytest.mark.parametrize("more", [{"method": "full", "learning_rate": 1e-5}, EXTRAS], ids=["full", "with extras"])
def test_a_probe_changes_nothing(place, more):
    host = place.host()
    model = host.loaded_model().model
    before, files = state_of(model), read_tree(place.folders.user_data)
    probe(place, host, **more)
    assert (state_of(model), read_tree(place.folders.user_data)) == (before, files)


def test_a_probe_reports_the_run(place):
    event, words = probe(place, accumulation=2, epochs=3, batch_size=3)
    assert (event.batch_size, event.steps) == (3, 9)
    assert 0 < event.seconds < event.run_seconds and 60 < event.tokens <= 96
    assert "whole run, 9 steps: about " in words and "additional time" not in words
    assert (event.evaluations, event.answers) == (0, 0)
    if sys.platform.startswith("linux"):  # only Linux tells the peak
        assert event.peak > 0 and event.expected > 0
        assert "peak memory in addition to the model: " in words


@pytest.mark.long
def test_evaluations_and_answers_are_counted_as_in_the_run(place):
    event, words = probe(place, **EXTRAS)
    run = Job("training", "a test")
    place.train(job=run, **EXTRAS)
    assert event.evaluations == len(events_of(run, EvaluationDone))
    assert event.answers == len(events_of(run, SampleGenerated))
    assert min(event.evaluation_seconds, event.answer_seconds) > 0
    for what, bound in ((f"{event.evaluations} evaluations", "about"), (f"{event.answers} samples", "up to")):
        assert f"additional time for {what}: {bound} " in words


def failing(module, when):
    """Let a module fail, in eval mode or for inputs of some kind."""

    def fail(module, args, kwargs):
        if when(module, kwargs):
            raise torch.OutOfMemoryError("CUDA out of memory. Tried to allocate 2.00 GiB")

    return module.register_forward_pre_hook(fail, with_kwargs=True)


def test_a_batch_that_does_not_fit_is_probed_in_halves(place):
    host, seen = place.host(), []
    model = host.loaded_model().model.model

    def too_large(module, kwargs):
        seen.append(kwargs["input_ids"].numel())
        return module.training and seen[-1] > 70

    failing(model, too_large)
    event, words = probe(place, host, batch_size=4, packing="off")
    assert (event.too_large, event.batch_size, event.largest_batch, event.fits) == (4, 2, 2, False)
    assert event.fitting == {"batch_size": 2, "accumulation": 2}
    assert "batch with the longest examples: 2 examples, " in words and "batch size that does not fit: 4" in words
    assert "The run does not fit. Try batch_size = 2, accumulation = 2." in words and max(seen) > 70
    with pytest.raises(ModelError, match=r"Out of memory.*To fix this, try"):
        probe(place, host, cutoff=128, batch_size=2)
