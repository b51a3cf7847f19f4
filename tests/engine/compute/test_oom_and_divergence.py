"""Out of memory and NaN losses: a step is repeated in parts, or the run ends; a job leaves nothing in memory."""

from __future__ import annotations

import gc
import math
import weakref
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Advice, Job, Note, Step
from training_pro.engine.compute import failures
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.engine.watching import events_of
from training_pro.tests.tiny import watched_job

TWO = {"epochs": 2, "save_each_epoch": False, "batch_size": 4, "accumulation": 2, "learning_rate": 1e-3}


def limit_memory(host, most, where, kind=RuntimeError, first=1):
    """Make the model run out of memory with more than `most` texts, from its `first` training pass on."""
    model = host.loaded_model().model
    seen = {"texts": 0, "passes": 0, "failed": 0}

    def fail():
        if model.training and seen["passes"] >= first and seen["texts"] > most:
            seen["failed"] += 1
            raise kind("CUDA out of memory. Tried to allocate 2.00 GiB.")

    def enter(module, args, kwargs):
        if model.training and torch.is_grad_enabled():
            seen["passes"] += 1
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            positions = kwargs.get("position_ids")
            seen["texts"] = len(ids) if positions is None else int((positions == 0).sum())

    def leave(module, args, output):
        output = output[0] if isinstance(output, tuple) else output
        if where == "forward":
            fail()
        elif output.requires_grad:
            output.register_hook(lambda gradient: fail())  # late in the backward pass, when most gradients exist

    model.model.register_forward_pre_hook(enter, with_kwargs=True)
    model.model.layers[0].register_forward_hook(leave)
    return seen


@pytest.mark.long
@pytest.mark.parametrize(
    ("packing", "where", "kind", "most", "first", "failed"),
    [
        ("on", "forward", torch.OutOfMemoryError, 2, 4, 1),  # the second micro-batch of the second step
        ("off", "backward", RuntimeError, 2, 4, 1),
        ("off", "backward", RuntimeError, 1, 1, 2),  # halves that do not fit are halved again
    ],
)
def test_a_batch_that_does_not_fit_is_repeated_in_halves(place, packing, where, kind, most, first, failed):
    place.train(name="whole", packing=packing, **TWO)
    host, job = place.host(), Job("training", "a test")
    seen = limit_memory(host, most, where, kind, first)
    assert place.train(host, job=job, name="halved", packing=packing, **TWO).outcome == "finished"
    assert seen["failed"] == failed  # then in parts that fit
    assert [e.step for e in events_of(job, Step)] == [1, 2, 3, 4]
    advice = [e.text for e in events_of(job, Advice) if "memory" in e.text]
    assert advice[0].startswith(f"Step {2 if first == 4 else 1}: a batch of 4 examples does not fit in memory.")
    assert "train on 2" in advice[0] and len(advice) == failed
    a, b = (load_file(place.lora(name) / "adapter_model.safetensors") for name in ("halved", "whole"))
    assert max(float((a[key] - b[key]).abs().max()) for key in a) < 1e-6
    losses = [[entry["loss"] for entry in read_graph(place, name)] for name in ("halved", "whole")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


@pytest.mark.long
def test_a_single_example_that_does_not_fit_is_an_error_with_remedies(place):
    host = place.host()
    limit_memory(host, 0, "forward", first=6)
    with pytest.raises(ModelError, match=r"^Out of memory: a single example of .* try: Gradient chec") as refusal:
        place.train(host, save_every=1, **TWO)
    changes = [remedy.values for remedy in refusal.value.remedies]
    assert changes[0] == {"gradient_checkpointing": "on"} and {"optimizer": "adamw_8bit"} in changes
    assert str(refusal.value).endswith("The last checkpoint is checkpoint-2.")
    assert loras.run_status(place.lora()) == "cut off"
    assert place.train(resume="newest", save_every=1, **TWO).outcome == "finished"


@pytest.mark.parametrize(("batch_size", "advice"), [(3, "Batch Size 1 and Gradient Accumulation 6"), (1, "try: ")])
def test_a_batch_that_cannot_be_split_is_an_error_whose_advice_keeps_the_effective_batch(
    place, batch_size, advice
):
    host = place.host()
    limit_memory(host, 0, "forward", first=0)
    with pytest.raises(ModelError, match=advice):
        place.train(host, **{**TWO, "batch_size": batch_size, "method": "full", "learning_rate": 1e-5})


def break_output(host, step):
    """Make the model's output NaN in one training step of two micro-batches."""
    model, passes = host.loaded_model().model, []

    def spoil(module, args, output):
        if model.training and torch.is_grad_enabled():
            passes.append(1)
            if (len(passes) + 1) // 2 == step:
                return type(output)({**output, "last_hidden_state": output.last_hidden_state * math.nan})
        return output

    model.model.register_forward_hook(spoil)


@pytest.mark.long
def test_a_nan_loss_ends_the_run_before_the_weights_change(place):
    settings = {**TWO, "save_every": 2, "schedule": "constant"}
    place.train(name="good", **settings, max_steps=2)
    host = place.host()
    break_output(host, 3)
    end = place.train(host, **settings)
    assert (end.outcome, loras.run_status(place.lora())) == ("failed", "failed")
    assert end.text.startswith("Step 3 would have damaged the weights: the loss is nan.")
    assert "a lower learning rate (it was 0.001; try a tenth of that)" in end.text
    assert place.weights() == place.weights("good")  # the LoRA of the last good step
    assert [c.step for c in loras.checkpoints(place.lora())] == [2]
    for name in ("training_graph.json", "training_log.json"):
        assert "NaN" not in (place.lora() / name).read_text()
    assert place.train(resume="newest", **settings).outcome == "finished"


@pytest.mark.long
@pytest.mark.parametrize(("save_every", "broken", "left"), [(2, 3, [2]), (2, 4, [2]), (0, 3, [])])
def test_nan_weights_are_never_saved_as_good_ones(place, save_every, broken, left):
    """Step 4 is the last one, whose checkpoint has the broken weights."""
    host = place.host()

    def spoil(job, event):
        if isinstance(event, Step) and event.step == broken:
            with torch.no_grad():
                next(w for w in host.loaded_model().model.parameters() if w.requires_grad).fill_(math.nan)

    job = watched_job(spoil)
    end = place.train(host, job=job, **{**TWO, "save_every": save_every})
    assert end.outcome == "failed"
    assert f"after step {broken}, some weights are NaN or infinite" in end.text
    assert [c.step for c in loras.checkpoints(place.lora())] == left
    spoiled = "checkpoint-4 contains weights that are NaN or infinite"
    assert any(e.text.startswith(spoiled) for e in events_of(job, Note)) is (broken == 4)
    if not left:
        assert "nothing from this run is kept" in end.text and not place.lora().exists()
        return
    assert "The LoRA from step 2, the last checkpoint with valid weights, is in " in end.text
    assert place.weights() == place.weights("a/checkpoint-2")
    assert failures.is_finite_checkpoint(place.lora())
    assert (read_log(place)["ended"], read_log(place)["kept_step"]) == ("failed", 2)


@pytest.mark.parametrize(
    ("loss", "norm", "scaled", "why"),
    [
        (12.0, 1.0, True, ""),  # an odd example, but not far worse than guessing
        (math.nan, 1.0, True, "the loss is nan"),
        (math.inf, 1.0, False, "the loss is inf"),
        (2.0, math.inf, False, "the gradient norm is inf at a loss of 2.0000"),
        (2.0, math.inf, True, ""),  # float16: the gradient scaler skips the step
        (25.0, 1.0, False, "the loss jumped to 25 from a smoothed loss of 2"),
    ],
)
def test_steps_that_must_not_change_the_weights(loss, norm, scaled, why):
    assert failures.find_divergence(loss, norm, 2.0, 32000, scaled=scaled) == why
    if math.isfinite(loss):
        assert failures.find_divergence(loss, 1.0, None, 32000, scaled=False) == ""


@pytest.fixture
def no_collection():
    gc.collect()
    gc.disable()
    yield
    gc.enable()


def alive():
    """All living trainers and optimizers; they reference the LoRA and the model."""
    kinds = ("RunTrainer", "AdamW")
    return {id(thing) for thing in gc.get_objects() if type(thing).__name__ in kinds}


@pytest.mark.long
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


@pytest.mark.parametrize("error", [torch.OutOfMemoryError(), MemoryError(), RuntimeError("can't allocate memory")])
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

    with pytest.raises(ModelError, match="Out of memory"), failures.explain_out_of_memory(explain):
        step()
    assert still == [None]
