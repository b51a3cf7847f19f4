"""Void Trainer's manual: what its options do in a run here."""

from __future__ import annotations

import json

import pytest
import torch
from training_pro.core.jobs import CheckpointSaved, EvaluationDone, Job, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import trainer
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import record_batches
from training_pro.tests.tiny import watched_job

SAMPLES = 16


def checked(place, **more):
    return PeftEngine().check(place.settings(**more), place.host())


@pytest.mark.parametrize(("order", "shuffled"), [("shuffled", True), ("sequential", False)])
def test_if_you_enable_shuffle_your_data_will_be_shuffled(place, monkeypatch, order, shuffled):
    records = record_batches(monkeypatch, trainer)
    place.train(batching=order)
    numbers = [number for record in records for number in record]
    assert sorted(numbers) == list(range(SAMPLES))
    assert (numbers != list(range(SAMPLES))) == shuffled


@pytest.mark.parametrize("batch_size", [2, 4, 8])
def test_the_batch_size_divides_the_samples(place, batch_size):
    assert checked(place, batch_size=batch_size).steps == SAMPLES // batch_size


def test_the_longest_length_of_a_line_is_counted_in_tokens(place):
    place.write("rows.jsonl", "\n".join(json.dumps({"text": "word " * n}) for n in (5, 10, 400)))
    asked = {"data": ["rows.jsonl"], "too_long": "cut_end"}
    for cutoff in (16, 32, 64):
        assert checked(place, cutoff=cutoff, **asked).longest == cutoff


@pytest.mark.parametrize(("metric", "better"), [("loss", min), ("accuracy", max)])
def test_with_best_saving_the_model_is_only_saved_if_it_is_better_than_before(place, metric, better):
    job = Job("training", "a test")
    asked = {"keep_best": metric, "eval_share": 0.2, "eval_every": 1, "epochs": 6, "learning_rate": 0.05}
    place.train(job=job, save_each_epoch=False, backup_minutes=0, **asked)
    events = job.log.since(0)
    measured = {event.step: getattr(event, metric) for event in events if isinstance(event, EvaluationDone)}
    saved = [event.step for event in events if isinstance(event, CheckpointSaved) and event.reason == "best"]
    for step in saved:
        earlier = [value for at, value in measured.items() if 0 < at < step]
        assert all(better(value, measured[step]) == measured[step] for value in earlier)
    top = better(value for step, value in measured.items() if step)
    assert saved and measured[saved[-1]] == top


def test_the_checkpoint_save_path_is_where_the_trained_model_is(place):
    place.train(name="saved-here", max_steps=1)
    assert (place.folders.loras / "saved-here" / "adapter_model.safetensors").is_file()


def test_gradient_checkpointing_reduces_the_memory_usage(place):
    on, off = (checked(place, gradient_checkpointing=value).memory.total for value in ("on", "off"))
    assert on < off and {"on", "off"} <= SETTINGS["gradient_checkpointing"].choices.keys()


@pytest.mark.parametrize(("value", "passes"), [("on", 2), ("off", 1)])
def test_gradient_checkpointing_is_on_in_a_run_and_slower_by_a_second_forward_pass(place, value, passes):
    host, forward, kinds = place.host(), [], []
    model = host.loaded_model().model

    def watch(job, event):
        if isinstance(event, Step):
            modules = [module for module in model.modules() if getattr(module, "gradient_checkpointing", False)]
            kinds.append({module._gradient_checkpointing_func.keywords["use_reentrant"] for module in modules})

    def count(module, inputs):
        if torch.is_grad_enabled():
            forward.append(module)

    model.model.layers[0].mlp.register_forward_pre_hook(count)
    place.train(host, job=watched_job(watch), gradient_checkpointing=value, max_steps=1)
    assert kinds == [{False} if value == "on" else set()]
    assert len(forward) == passes
    assert not model.is_gradient_checkpointing, "the model is given back as it was"


def test_gradient_checkpointing_is_auto_by_default_where_void_trainer_has_it_off(place):
    assert SETTINGS["gradient_checkpointing"].default == "auto"
    assert read_page("Gradient checkpointing is off by default.").startswith("The default is auto")
    assert checked(place).memory.total == checked(place, gradient_checkpointing="off").memory.total


@pytest.mark.parametrize("loading", ["8bit", "4bit"])
def test_a_checkpoint_is_resumed_in_8_and_4_bits_as_well(place, loading):
    assert "resume a LoRA there" in read_page("Checkpoint loading is disabled in 8 and 4 bits.")
    asked, job = {"save_every": 1, "save_each_epoch": False}, Job("training", "a test")
    place.train(place.host(loading), max_steps=1, **asked)
    place.train(place.host(loading), job=job, resume="newest", max_steps=2, **asked)
    assert [event.step for event in job.log.since(0) if isinstance(event, Step)] == [2]


@pytest.mark.parametrize("name", ["data.csv", "data.tsv"])
def test_one_file_is_the_dataset(place, name):
    mark = "," if name.endswith("csv") else "\t"
    place.write(name, "\n".join(f"What is {n}?{mark}It is {n}." for n in ("x", *range(8))))
    place.write("other.csv", "question,answer\nNo?,No.")
    header = mark.join(("question", "answer"))
    text = (place.folders.datasets / name).read_text(encoding="utf-8")
    place.write(name, f"{header}\n{text}")
    assert checked(place, data=[name], cutoff="auto").examples == 9
