"""Out of memory and NaN losses: a step is repeated in parts, or the run ends with its LoRA saved."""

from __future__ import annotations

import json
import math

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import ModelError
from training_pro.core.files import dump_json
from training_pro.core.jobs import Advice, Job, Note, Step
from training_pro.engine.compute import collate, find_divergence, is_finite_checkpoint, telemetry, windows_vram
from training_pro.engine.compute.oom import BatchSplitter, is_out_of_memory
from training_pro.records.folder import loras
from training_pro.tests.engine.architectures import random_examples
from training_pro.tests.tiny import watched_job

TWO = {
    "epochs": 2,
    "save_each_epoch": False,
    "batch_size": 4,
    "accumulation": 2,
    "learning_rate": 1e-3,
    "sample_every": "never",
}
OOM_MESSAGE = "CUDA out of memory. Tried to allocate 2.00 GiB."


def events_of(job, kind):
    return [event for event in job.log.since(0) if isinstance(event, kind)]


def count_texts(inputs, positions):
    """Number of texts in a batch: rows, or positions of 0."""
    return len(inputs) if positions is None else int((positions == 0).sum())


def limit_memory(host, most, where, kind=RuntimeError, first=1):
    """Make the model run out of memory with more than `most` texts, from its `first` training pass on."""
    model = host.loaded_model().model
    seen = {"texts": 0, "passes": 0, "failed": 0}

    def fail():
        if model.training and seen["passes"] >= first and seen["texts"] > most:
            seen["failed"] += 1
            raise kind(OOM_MESSAGE)

    def enter(module, args, kwargs):
        if model.training and torch.is_grad_enabled():
            seen["passes"] += 1
            ids = kwargs["input_ids"] if "input_ids" in kwargs else args[0]
            seen["texts"] = count_texts(ids, kwargs.get("position_ids"))

    def leave(module, args, output):
        if where == "forward":
            fail()
        elif output.requires_grad:
            output.register_hook(lambda gradient: fail())  # late in the backward pass, when most gradients exist

    model.model.register_forward_pre_hook(enter, with_kwargs=True)
    model.model.layers[0].register_forward_hook(
        lambda module, args, output: leave(module, args, output[0] if isinstance(output, tuple) else output)
    )
    return seen


def difference(place, one, other):
    a, b = (load_file(place.lora(name) / "adapter_model.safetensors") for name in (one, other))
    return max(float((a[key] - b[key]).abs().max()) for key in a)


@pytest.mark.parametrize("packing", ["on", "off"])
@pytest.mark.parametrize("where", ["forward", "backward"])
def test_a_batch_that_does_not_fit_is_repeated_in_halves(place, packing, where):
    place.train(name="whole", packing=packing, **TWO)
    host, job = place.host(), Job("training", "a test")
    error_class = torch.OutOfMemoryError if where == "forward" else RuntimeError
    seen = limit_memory(host, 2, where, error_class, first=4)  # the second micro-batch of the second step
    end = place.train(host, job=job, name="halved", packing=packing, **TWO)
    assert end.outcome == "finished"
    assert seen["failed"] == 1  # once, then two at a time
    assert [e.step for e in events_of(job, Step)] == [1, 2, 3, 4]
    assert difference(place, "halved", "whole") < 1e-6
    (advice,) = [e.text for e in events_of(job, Advice) if "memory" in e.text]
    assert advice.startswith(
        "Step 2: a batch of 4 examples does not fit in memory. This step and all later ones train on 2"
    )
    losses = [
        [e["loss"] for e in json.loads((place.lora(n) / "training_graph.json").read_text()) if "loss" in e]
        for n in ("halved", "whole")
    ]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_halves_that_do_not_fit_are_halved_again(place):
    place.train(name="whole", **TWO)
    host, job = place.host(), Job("training", "a test")
    seen = limit_memory(host, 1, "backward")
    place.train(host, job=job, name="halved", **TWO)
    assert seen["failed"] == 2
    assert difference(place, "halved", "whole") < 1e-6


def test_a_single_example_that_does_not_fit_is_an_error_with_remedies(place):
    host = place.host()
    limit_memory(host, 0, "forward", first=6)
    with pytest.raises(ModelError) as refusal:
        place.train(host, save_every=1, **TWO)
    message = str(refusal.value)
    assert message.startswith("Out of memory: a single example of ")
    assert "To fix this, try: Gradient checkpointing on (saves about " in message
    assert "loading the model in 4-bit." in message
    changes = [remedy.values for remedy in refusal.value.remedies]
    assert changes[0] == {"gradient_checkpointing": "on"} and {"optimizer": "adamw_8bit"} in changes
    assert message.endswith("The last checkpoint is checkpoint-2.")
    assert loras.run_status(place.lora()) == "cut off"
    assert place.train(resume="newest", save_every=1, **TWO).outcome == "finished"


def test_other_errors_are_not_taken_for_out_of_memory(place):
    host = place.host()
    host.loaded_model().model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        place.train(host, **TWO)
    assert is_out_of_memory(MemoryError())
    assert is_out_of_memory(RuntimeError("[enforce fail] DefaultCPUAllocator: can't allocate memory"))
    assert not is_out_of_memory(RuntimeError("shapes do not match"))


def test_micro_batches_do_not_separate_continued_examples():
    examples = random_examples(1, 2, 3, 4, 5)
    batch = collate(examples, [False, True, False, False, True], in_one_row=False)
    assert (len(batch), batch.tokens) == (3, 15)
    assert batch[0:3] is batch
    assert [len(e.ids) for e in batch[:1].examples] == [1, 2]
    assert [len(e.ids) for e in batch[1:3].examples] == [3, 4, 5]
    assert batch[1:3].inputs["attention_mask"].sum(-1).tolist() == [3, 9]
    assert collate(examples, [True] * 5, in_one_row=True).joins[0] is False


def test_parts_keep_the_size_that_fits():
    tried, splits, splitter = [], [], BatchSplitter()

    def run(part):
        tried.append(list(part))
        if len(part) > 2:
            raise MemoryError
        return sum(part)

    assert list(splitter.run(range(7), run, lambda *sizes: splits.append(sizes))) == [1, 5, 9, 6]
    assert splits == [(7, 4), (4, 2)]
    assert sum(map(len, tried)) == 7 + 7 + 4
    assert list(splitter.run(range(3), run)) == [1, 2]
    with pytest.raises(MemoryError):
        next(BatchSplitter(enabled=False).run(range(3), run))


def break_output(host, step, value):
    """Multiply the model's output by `value` in one training step of two micro-batches."""
    model, passes = host.loaded_model().model, []

    def spoil(module, args, output):
        if model.training and torch.is_grad_enabled():
            passes.append(1)
            if (len(passes) + 1) // 2 == step:
                return type(output)({**output, "last_hidden_state": output.last_hidden_state * value})
        return output

    model.model.register_forward_hook(spoil)


@pytest.mark.parametrize("value", [math.nan, math.inf])
def test_a_nan_loss_ends_the_run_before_the_weights_change(place, value):
    three = {**TWO, "epochs": 2, "save_every": 2}
    place.train(name="good", job=None, **{**three, "max_steps": 2, "schedule": "constant"})
    host = place.host()
    break_output(host, 3, value)
    end = place.train(host, **{**three, "schedule": "constant"})
    assert end.outcome == "failed"
    assert end.text.startswith(
        "Step 3 would have damaged the weights: the loss is nan. The weights stay as they were after"
    )
    assert "a lower learning rate (it was 0.001; try a tenth of that)" in end.text
    assert place.weights() == place.weights("good")  # the LoRA of the last good step
    assert loras.run_status(place.lora()) == "failed"
    assert [c.step for c in loras.checkpoints(place.lora())] == [2]
    for name in ("training_graph.json", "training_log.json"):
        assert "NaN" not in (place.lora() / name).read_text()
    assert place.train(resume="newest", **{**three, "schedule": "constant"}).outcome == "finished"


def break_weights(host, step):
    """Set the weights to NaN in the given optimizer step, as by an overflow."""
    model, steps = host.loaded_model().model, []

    def spoil(*_):
        steps.append(1)
        if len(steps) == 2 * step + 1:  # two micro-batches per step: the first forward pass after it
            with torch.no_grad():
                next(w for n, w in model.named_parameters() if w.requires_grad).fill_(math.nan)

    model.model.register_forward_pre_hook(lambda module, args: spoil() if model.training else None)


@pytest.mark.parametrize(("save_every", "left"), [(2, [2]), (0, [])])
def test_nan_weights_are_never_saved_as_good_ones(place, save_every, left):
    host, job = place.host(), Job("training", "a test")
    break_weights(host, 3)
    end = place.train(host, job=job, **{**TWO, "save_every": save_every})
    assert end.outcome == "failed"
    assert end.text.startswith("Training diverged: after step 3, some weights are NaN or infinite")
    assert [c.step for c in loras.checkpoints(place.lora())] == left
    if not left:
        assert "nothing from this run is kept" in end.text
        assert not place.lora().exists()
        return
    assert "The LoRA from step 2, the last checkpoint with valid weights, is in " in end.text
    assert (
        place.weights() == (loras.checkpoints(place.lora())[0].folder / "adapter_model.safetensors").read_bytes()
    )
    assert is_finite_checkpoint(place.lora())
    log = json.loads((place.lora() / "training_log.json").read_text())
    assert (log["ended"], log["kept_step"]) == ("failed", 2)


def test_a_last_step_that_breaks_the_weights_is_detected_with_its_checkpoint(place, monkeypatch):
    from training_pro.engine.training.trainer import RunTrainer

    save = RunTrainer._save_checkpoint

    def spoiled(self, model, trial):
        if self.state.global_step == 4:
            with torch.no_grad():
                next(w for w in model.parameters() if w.requires_grad).fill_(math.inf)
        save(self, model, trial)

    monkeypatch.setattr(RunTrainer, "_save_checkpoint", spoiled)
    job = Job("training", "a test")
    end = place.train(job=job, **{**TWO, "save_every": 2})
    assert end.outcome == "failed"
    assert "after step 4, some weights are NaN" in end.text and "The LoRA from step 2, " in end.text
    assert [c.step for c in loras.checkpoints(place.lora())] == [2]
    spoiled_note = "checkpoint-4 contains weights that are NaN or infinite"
    assert any(e.text.startswith(spoiled_note) for e in events_of(job, Note))


def test_a_first_step_that_breaks_leaves_nothing(place):
    host = place.host()
    break_output(host, 1, math.nan)
    with pytest.raises(Exception, match="Step 1 would have damaged the weights: the loss is nan"):
        place.train(host, **TWO)
    assert not place.lora().exists()


def test_a_first_step_after_added_epochs_that_breaks_saves_the_lora(place):
    host = place.host()
    break_output(host, 3, math.nan)
    extending = watched_job(lambda job, e: job.control.extend(1) if isinstance(e, Step) and e.step == 2 else None)
    end = place.train(host, job=extending, **TWO)
    assert end.text.startswith("Step 3 would have damaged the weights: the loss is nan.")
    assert (end.outcome, end.folder) == ("failed", place.lora())
    assert place.weights() == (place.lora() / "checkpoint-2" / "adapter_model.safetensors").read_bytes()


@pytest.mark.parametrize(
    ("loss", "norm", "scaled", "why"),
    [
        (2.0, 1.0, False, ""),
        (12.0, 1.0, False, ""),  # an odd example, but not far worse than guessing
        (math.nan, 1.0, True, "the loss is nan"),
        (2.0, math.inf, False, "the gradient norm is inf at a loss of 2.0000"),
        (2.0, math.inf, True, ""),  # float16: the gradient scaler skips the step
        (25.0, 1.0, False, "the loss jumped to 25 from a smoothed loss of 2"),
    ],
)
def test_steps_that_must_not_change_the_weights(loss, norm, scaled, why):
    assert find_divergence(loss, norm, 2.0, 32000, scaled=scaled) == why
    if math.isfinite(loss):
        assert find_divergence(loss, 1.0, None, 32000, scaled=False) == ""


def test_several_processes_use_the_mean_loss_and_stop_together(place, monkeypatch):
    from accelerate import Accelerator

    losses = []

    def reduced(self, tensor, reduction="sum"):
        losses.append((float(tensor), reduction))
        return tensor + (1000.0 if len(losses) == 3 else 0.0)  # as if another process had a much larger loss

    monkeypatch.setattr(Accelerator, "reduce", reduced)
    end = place.train(**{**TWO, "epochs": 2})
    assert end.outcome == "failed"
    assert "Step 3 would have damaged the weights: the loss jumped to 100" in end.text
    assert {reduction for _, reduction in losses} == {"mean"}
    assert max(loss for loss, _ in losses) < 10


def test_a_saved_lora_that_is_worse_than_none_is_reported(place):
    """The learning rate is far too high: the second step is already worse than the first."""
    host = place.host()
    break_output(host, 3, math.nan)
    end = place.train(host, **{**TWO, "epochs": 2, "learning_rate": 0.9, "schedule": "constant"})
    assert end.outcome == "failed"
    (warning,) = [line for line in end.text.splitlines() if line.startswith("The loss was ")]
    assert warning.endswith(", so the model is better without this LoRA.")


def test_nan_is_null_in_json():
    assert dump_json({"loss": math.nan, "more": [math.inf, 1.5]}) == '{"loss": null, "more": [null, 1.5]}'


def test_on_windows_the_memory_limit_of_the_gpu_is_set_and_restored(monkeypatch):
    fractions = []
    monkeypatch.setattr(windows_vram.sys, "platform", "win32")
    monkeypatch.setattr(torch.cuda, "mem_get_info", lambda place: (6_000, 10_000))
    monkeypatch.setattr(torch.cuda, "memory_reserved", lambda place: 2_000)
    monkeypatch.setattr(torch.cuda, "get_per_process_memory_fraction", lambda place: 1.0, raising=False)
    monkeypatch.setattr(
        torch.cuda, "set_per_process_memory_fraction", lambda share, place: fractions.append(share)
    )
    with pytest.raises(OSError), windows_vram.limit_vram(torch.device("cuda", 0)):
        raise OSError
    assert fractions == [0.8, 1.0]
    with windows_vram.limit_vram(torch.device("cpu")):
        pass
    assert len(fractions) == 2


def test_spilling_is_reported_once_when_steps_become_much_slower():
    detector = windows_vram.SpillDetector()
    usual = [detector.observe(1.0 + 0.1 * (n % 3), 1000) for n in range(20)]
    longer = [detector.observe(4.0, 4000) for _ in range(5)]  # not slower: more tokens
    assert not any([*usual, *longer])
    assert [detector.observe(9.0, 1000) for _ in range(5)] == [False, False, True, False, False]
    assert not any(windows_vram.SpillDetector().observe(9.0, 1000) for _ in range(30))


def test_a_run_that_spills_logs_advice(place, monkeypatch):
    detector = windows_vram.SpillDetector(baseline=[1e-9] * windows_vram.BASELINE_STEPS)
    monkeypatch.setattr(telemetry, "spill_detector", lambda device: detector)
    job = Job("training", "a test")
    place.train(job=job, **TWO)
    assert [e.text for e in events_of(job, Advice) if "to RAM" in e.text] == [windows_vram.SPILL_ADVICE]


def test_a_whole_model_that_does_not_fit_is_an_error_with_a_batch_size_that_would(place):
    host = place.host()
    limit_memory(host, 2, "backward")
    with pytest.raises(ModelError) as refusal:
        place.train(host, method="full", **TWO)
    assert str(refusal.value) == (
        "Out of memory. With full fine-tuning, a batch can't be split. Start again with True "
        "Batch Size 2 and Gradient Accumulation 4. The effective batch size stays the same. There is "
        "no checkpoint yet."
    )
