"""A whole run on the tiny model: its files, its events, its weights, and that it is reproducible."""

from __future__ import annotations

import json
import math

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from training_pro.core.errors import DataError, SavingError
from training_pro.core.jobs import Advice, CheckpointSaved, Job, MachineUse, Note, RunPlanned, Stage, Step
from training_pro.data.prepare import prepare
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.schedulers import SCHEDULES, ScheduleSteps, lr_multipliers
from training_pro.settings.files import convert_values
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.engine.watching import events_of, optimizer_groups, read, texts
from training_pro.tests.tiny import read_tree
from transformers import AutoModelForCausalLM

WEIGHTS = {"adapter_config.json", "adapter_model.safetensors"}
RESUME = {"optimizer.pt", "rng_state.pth", "run_state.json", "scheduler.pt", "trainer_state.json"}
RECORDS = {"train_dataset_sample.json", "report.html", "training_prompt.json", "training_graph.json"}
RECORDS |= {"training_graph.png", "training_log.json", "training_parameters.json"}
LAYERS = "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
LOG_FIRST = {
    **{"base_model_name": "tiny", "base_model_class": "LlamaForCausalLM", "base_loaded_in_4bit": False},
    **{"base_loaded_in_8bit": False, "projections": LAYERS, "loss": None, "learning_rate": None},
    **{"epoch": 2.0, "current_steps": 8},
}
"""The first keys, as other programs expect them."""


def test_events_records_and_files_of_a_run(place):
    before, job = read_tree(place.folders.user_data), Job("training", "a test")
    with optimizer_groups() as used:
        place.train(job=job, epochs=2, learning_rate=5e-3, recall_passages=0)
    new = read_tree(place.folders.user_data).keys() - before.keys()
    assert {path for path in new if not path.startswith("loras/")} == {"logs/", "logs/train_dataset_sample.json"}
    in_folder = {path for path in read_tree(place.lora()) if not path.endswith("/")}
    checkpoints = ("checkpoint-4-epoch-1", "checkpoint-8-epoch-2")
    assert in_folder == WEIGHTS | RECORDS | {f"{c}/{name}" for c in checkpoints for name in WEIGHTS | RESUME}

    kinds = [type(event) for event in job.log.since(0) if not isinstance(event, (Advice, Note, MachineUse))]
    epoch = [*[Step] * 4, CheckpointSaved]
    assert kinds == [*[Stage] * 4, RunPlanned, Stage, *epoch, *epoch, Stage]
    reading = ["Starting", "Reading story.txt", "Slicing story.txt", "Preparing the model"]
    assert texts(job, Stage) == [*reading, "Training", "Saving the LoRA"]
    (planned,), steps = events_of(job, RunPlanned), events_of(job, Step)
    assert (planned.name, planned.model, planned.first_step) == ("a", "tiny", 0)
    assert (planned.steps, planned.steps_per_epoch, planned.settings["learning_rate"]) == (8, 4, 5e-3)
    assert [(event.step, event.epoch) for event in steps] == [(n, n / 4) for n in range(1, 9)]
    assert [event.learning_rate for event in steps] == list(planned.rates)
    assert [groups[0]["lr"] for groups in used] == pytest.approx(list(planned.rates), rel=1e-12)
    smoothed = steps[0].loss
    for event in steps:  # the first, and then a tenth of the way
        smoothed = 0.9 * smoothed + 0.1 * event.loss
        assert event.smoothed == pytest.approx(smoothed, rel=1e-12)

    log, graph = read_log(place), read_graph(place)
    assert list(log)[:9] == list(LOG_FIRST) and log["ended"] == "finished"
    assert all(log[key] == value for key, value in LOG_FIRST.items() if value is not None)
    values = [(e["current_steps"], e["loss"], e["epoch"], e["learning_rate"]) for e in graph]
    assert values == [(e.step, e.loss, e.epoch, e.learning_rate) for e in steps]
    assert sum(event.tokens for event in steps) == 2 * log["data"]["tokens"]
    sample, story = (
        read(place.lora() / "train_dataset_sample.json"),
        (place.folders.datasets / "story.txt").read_text(),
    )
    assert len(sample) == 10 and story.startswith(sample[0]["value"])
    assert all(entry.keys() == {"value"} and entry["value"] in story for entry in sample)


def test_it_loads_with_plain_peft_and_its_settings_are_those_of_the_run(with_lora):
    base = AutoModelForCausalLM.from_pretrained(with_lora.tiny).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, with_lora.lora()).eval()(ids).logits
    assert (before - after).abs().max() > 0.01
    assert {weight.dtype for weight in load_file(with_lora.lora() / "adapter_model.safetensors").values()} == {
        torch.float32
    }
    values = read(with_lora.lora() / "training_parameters.json")
    assert values["made_by"] == "Training PRO"
    assert training_settings(convert_values(values).values) == with_lora.settings()


def test_only_the_layers_asked_for_are_trained_and_the_run_says_so(place):
    job = Job("training", "a test")
    place.train(job=job, targets="q-v", max_steps=1)
    layers = {name.split(".")[-3] for name in load_file(place.lora() / "adapter_model.safetensors")}
    assert (layers, read_log(place)["projections"]) == ({"q_proj", "v_proj"}, "q_proj, v_proj")
    summary = "q-v: model.layers.0-1.self_attn.q_proj, model.layers.0-1.self_attn.v_proj"
    assert f"The LoRA is added to {summary}." in texts(job, Note)


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_rates_that_were_used_are_the_schedules(place, name):
    place.train(schedule=name, epochs=2, learning_rate=4e-3, save_each_epoch=False, batch_size=8)
    steps = len(read_graph(place))
    phases = SCHEDULES[name].phases(ScheduleSteps(steps, steps // 2, math.ceil(0.05 * steps)))
    expected = [4e-3 * share for share in lr_multipliers(phases, steps)[:steps]]
    assert [entry["learning_rate"] for entry in read_graph(place)] == expected


def reference_loss(place, rows, **more):
    """Reference: the mean loss over all predicted tokens of a batch."""
    card = place.host().card()
    tokenizer = make_working_tokenizer(card.tokenizer)
    data = prepare(place.settings(**more), place.folders, card, tokenizer, lambda *_: None)
    model = AutoModelForCausalLM.from_pretrained(place.tiny, dtype=torch.float32).eval()
    losses = []
    for number in rows:
        ids = torch.as_tensor(data.examples[number].ids, dtype=torch.long)
        with torch.no_grad():
            logits = model(ids[None]).logits[0]
        losses.append(torch.nn.functional.cross_entropy(logits[:-1], ids[1:], reduction="none"))
    return torch.cat(losses).mean().item()


@pytest.mark.parametrize("split", [{"batch_size": 2}, {"batch_size": 1, "accumulation": 2}])
def test_the_first_loss_equals_the_reference(place, split):
    place.write("two.txt", "One fish swims in a very long river that never ends.\n\n\nTwo.")
    options = {"data": ["two.txt"], "max_steps": 1, **split}
    place.train(**options)
    (step,) = (entry for entry in read_graph(place) if "loss" in entry)
    assert step["tokens"] > 8
    assert step["loss"] == pytest.approx(reference_loss(place, (0, 1), **options), abs=1e-5)


def test_how_a_batch_is_split_or_recomputed_changes_no_loss(place):
    options = [{}, {"batch_size": 2, "accumulation": 2}, {"gradient_checkpointing": "on"}]
    for number, more in enumerate(options):
        place.train(name=str(number), **{"gradient_checkpointing": "off", **more})
    whole, split, recomputed = ([entry["loss"] for entry in read_graph(place, name)] for name in "012")
    assert whole == pytest.approx(split, abs=1e-5) and whole == pytest.approx(recomputed, abs=1e-5)
    assert whole[-1] < whole[0]


@pytest.mark.parametrize("loading", ["bfloat16", "4bit", "8bit"])
def test_every_way_of_loading_learns_also_after_an_answer(place, loading):
    place.train(place.host(loading), epochs=4)
    log, graph = read_log(place), read_graph(place)
    assert graph[-1]["loss"] < graph[0]["loss"] - 0.1
    assert (log["base_loaded_in_4bit"], log["base_loaded_in_8bit"]) == (loading == "4bit", loading == "8bit")
    assert log["loaded_as"] == loading
    assert log["computed_in"] == ("bfloat16" if loading == "bfloat16" else "float32")
    if loading == "4bit":
        host = place.host("4bit")
        place.answer(host)
        place.train(host, name="after", epochs=4)
        assert place.weights("after") == place.weights()


def test_check_and_run_have_the_same_counts_and_check_estimates_the_time_by_an_earlier_run(place):
    settings = {"overlap": True, "accumulation": 3, "epochs": 1.5}
    report = PeftEngine().check(place.settings(**settings), place.host())
    assert any("no earlier run" in note for note in report.notes if note.startswith("Time:"))
    place.train(**settings)
    log, checked = read_log(place), json.loads(json.dumps(report.as_json()))
    checked["notes"] = [text for text in checked["notes"] if not text.startswith(("Recall (how", "Time:"))]
    assert checked == log["data"]  # a run shows recall and time itself
    assert log["current_steps"] == report.steps
    later = PeftEngine().check(place.settings(name="another"), place.host())
    (note,) = (note for note in later.notes if note.startswith("Time:"))
    assert "if this run is as fast as a was with this model (CPU, " in note


@pytest.mark.parametrize(
    ("error", "more"),
    [(DataError, {"data": ["no.txt"]}), (DataError, {"cutoff": 4096}), (SavingError, {"resume": "checkpoint-9"})],
)
def test_a_refused_run_loads_no_weights_and_writes_nothing(place, error, more):
    host, before = place.host(), read_tree(place.folders.user_data)
    with pytest.raises(error):
        place.train(host, **more)
    assert host.model_status().problem  # it is not loaded
    assert read_tree(place.folders.user_data) == before
