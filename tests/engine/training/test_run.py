"""A whole run on the tiny model: its files, its events, its weights, and that it is reproducible."""

from __future__ import annotations

import json
import math

import pytest
import torch
from peft import PeftModel, get_peft_model
from safetensors.torch import load_file
from training_pro.core.errors import DataError, SavingError
from training_pro.core.jobs import Advice, CheckpointSaved, Job, MachineUse, Note, RunPlanned, Stage, Step
from training_pro.data.prepare import prepare
from training_pro.engine.lora import inject_lora, lora_config
from training_pro.engine.lora.targets import resolve_targets
from training_pro.engine.tokenizer import make_working_tokenizer
from training_pro.schedulers import SCHEDULES, ScheduleSteps, lr_multipliers
from training_pro.settings.files import convert_values
from training_pro.settings.parsing import training_settings
from training_pro.tests.tiny import read_tree, watched_job
from transformers import AutoModelForCausalLM, set_seed

CHECKPOINT = {
    "adapter_config.json",
    "adapter_model.safetensors",
    "optimizer.pt",
    "rng_state.pth",
    "run_state.json",
    "scheduler.pt",
    "trainer_state.json",
}
LORA = {
    "adapter_config.json",
    "adapter_model.safetensors",
    "train_dataset_sample.json",
    "report.html",
    "training_prompt.json",
    "training_graph.json",
    "training_graph.png",
    "training_log.json",
    "training_parameters.json",
}
LOG_FIRST = [
    "base_model_name",
    "base_model_class",
    "base_loaded_in_4bit",
    "base_loaded_in_8bit",
    "projections",
    "loss",
    "learning_rate",
    "epoch",
    "current_steps",
]


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def run_events(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **more)
    return job.log.since(0)


def test_the_folder_has_exactly_the_documented_files(with_lora):
    in_folder = {path for path in read_tree(with_lora.lora()) if not path.endswith("/")}
    assert in_folder == LORA | {f"checkpoint-4-epoch-1/{name}" for name in CHECKPOINT}


def test_nothing_else_is_written(place):
    before = read_tree(place.folders.user_data)
    place.train()
    new = read_tree(place.folders.user_data).keys() - before.keys()
    assert {path for path in new if not path.startswith("loras/")} == {"logs/", "logs/train_dataset_sample.json"}


def test_it_loads_with_plain_peft_and_changes_the_logits(with_lora):
    base = AutoModelForCausalLM.from_pretrained(with_lora.tiny).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, with_lora.lora()).eval()(ids).logits
    assert (before - after).abs().max() > 0.01


def test_every_trained_weight_has_changed(place):
    place.train(name="b", targets="all-linear")
    trained = load_file(place.lora("b") / "adapter_model.safetensors")
    base = AutoModelForCausalLM.from_pretrained(place.tiny, dtype=torch.float32)
    set_seed(42)
    lora_settings = place.settings(name="b").lora
    initial = get_peft_model(
        base, lora_config(lora_settings, base, resolve_targets(lora_settings.targets, base))
    ).state_dict()
    assert len(trained) == 2 * 7 * 2
    unchanged = [n for n, w in trained.items() if torch.equal(w, initial[n.replace(".weight", ".default.weight")])]
    assert unchanged == []
    assert {weight.dtype for weight in trained.values()} == {torch.float32}


def test_only_the_layers_asked_for_are_trained(place):
    place.train(targets="q-v")
    layers = {name.split(".")[-3] for name in load_file(place.lora() / "adapter_model.safetensors")}
    assert layers == {"q_proj", "v_proj"}
    assert read(place.lora() / "training_log.json")["projections"] == "q_proj, v_proj"


def test_the_same_seed_gives_the_same_bytes_and_another_seed_others(place):
    place.train(name="a", dropout=0.1)
    place.train(name="b", dropout=0.1)
    place.train(name="c", dropout=0.1, seed=43)
    assert place.weights("a") == place.weights("b")
    assert place.weights("a") != place.weights("c")


def test_events_come_in_order(place):
    events = run_events(place, recall_passages=0)
    kinds = [type(event) for event in events]
    kinds = [kind for kind in kinds if kind not in (Advice, Note, MachineUse)]  # their number may change
    assert kinds == [Stage, Stage, Stage, Stage, RunPlanned, Stage, *[Step] * 4, CheckpointSaved, Stage]
    stages = [event.text for event in events if isinstance(event, Stage)]
    assert stages == [
        "Starting",
        "Reading story.txt",
        "Slicing story.txt",
        "Preparing the model",
        "Training",
        "Saving the LoRA",
    ]
    assert [event.at for event in events] == sorted(event.at for event in events)


def test_the_run_follows_its_plan(place):
    events = run_events(place, epochs=3, learning_rate=5e-3)
    (planned,) = [event for event in events if isinstance(event, RunPlanned)]
    steps = [event for event in events if isinstance(event, Step)]
    assert (planned.name, planned.model, planned.first_step) == ("a", "tiny", 0)
    assert (planned.steps, planned.steps_per_epoch) == (12, 4)
    assert [event.step for event in steps] == list(range(1, 13))
    assert [event.epoch for event in steps] == [step / 4 for step in range(1, 13)]
    assert [event.learning_rate for event in steps] == list(planned.rates)
    assert planned.settings["learning_rate"] == 5e-3


@pytest.mark.parametrize("name", sorted(SCHEDULES))
def test_the_rates_that_were_used_are_the_schedules(place, name):
    used = []

    def watch(job, event):
        if isinstance(event, Step):
            used.append(event.learning_rate)

    place.train(job=watched_job(watch), schedule=name, epochs=2, learning_rate=4e-3, save_each_epoch=False)
    phases = SCHEDULES[name].phases(ScheduleSteps(8, 4, math.ceil(0.05 * 8)))
    expected = [4e-3 * share for share in lr_multipliers(phases, 8)[:8]]
    assert used == expected
    assert [e["learning_rate"] for e in read(place.lora() / "training_graph.json")] == expected


def test_the_logged_rate_is_that_of_the_optimizer(place, monkeypatch):
    from training_pro.engine.training.trainer import RunTrainer

    rates, step = [], RunTrainer.training_step

    def spy(self, *args, **kwargs):
        rates.append(self.optimizer.param_groups[0]["lr"])
        return step(self, *args, **kwargs)

    monkeypatch.setattr(RunTrainer, "training_step", spy)
    events = run_events(place, epochs=2)
    assert rates == pytest.approx([e.learning_rate for e in events if isinstance(e, Step)], rel=1e-12)


def test_the_log_begins_with_the_keys_of_other_programs(with_lora):
    log = read(with_lora.lora() / "training_log.json")
    assert list(log)[:9] == LOG_FIRST
    assert [log[key] for key in LOG_FIRST[:4]] == ["tiny", "LlamaForCausalLM", False, False]
    assert log["projections"] == "down_proj, gate_proj, k_proj, o_proj, q_proj, up_proj, v_proj"
    assert (log["current_steps"], log["epoch"], log["ended"]) == (4, 1.0, "finished")


def test_the_graph_has_one_entry_per_step(place):
    events = run_events(place)
    graph = read(place.lora() / "training_graph.json")
    steps = [event for event in events if isinstance(event, Step)]
    assert [e["current_steps"] for e in graph] == [1, 2, 3, 4]
    assert [e["loss"] for e in graph] == [event.loss for event in steps]
    assert [e["epoch"] for e in graph] == [0.25, 0.5, 0.75, 1.0]
    assert sum(event.tokens for event in steps) == read(place.lora() / "training_log.json")["data"]["tokens"]


def test_the_smoothed_loss_begins_as_the_first_and_moves_a_tenth(place):
    steps = [event for event in run_events(place) if isinstance(event, Step)]
    s = steps[0].loss
    for event in steps:
        s = event.loss if event is steps[0] else 0.9 * s + 0.1 * event.loss
        assert event.smoothed == pytest.approx(s, rel=1e-12)


def test_the_saved_settings_load_as_the_same_run(with_lora):
    values = read(with_lora.lora() / "training_parameters.json")
    assert values["made_by"] == "Training PRO"
    assert training_settings(convert_values(values).values) == with_lora.settings()


def test_the_sample_is_of_the_examples_as_trained(place, with_lora):
    sample = read(with_lora.lora() / "train_dataset_sample.json")
    assert len(sample) == 10
    story = (place.folders.datasets / "story.txt").read_text()
    assert story.startswith(sample[0]["value"])
    assert all(entry.keys() == {"value"} and entry["value"] in story for entry in sample)


def reference_loss(place, rows, **more):
    """Reference: the mean loss over all predicted tokens of a batch."""
    settings = place.settings(**more)
    card = place.host().card()
    data = prepare(settings, place.folders, card, make_working_tokenizer(card.tokenizer), lambda *_: None)
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
    (step,) = [event for event in run_events(place, **options) if isinstance(event, Step)]
    assert step.tokens > 8
    assert step.loss == pytest.approx(reference_loss(place, (0, 1), **options), abs=1e-5)


def test_only_batch_times_accumulation_matters(place):
    place.train(name="whole", batch_size=4)
    place.train(name="split", batch_size=2, accumulation=2)
    losses = [[e["loss"] for e in read(place.lora(n) / "training_graph.json")] for n in ("whole", "split")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)


def test_gradient_checkpointing_changes_no_loss(place):
    place.train(name="off", gradient_checkpointing="off")
    place.train(name="on", gradient_checkpointing="on")
    losses = [[e["loss"] for e in read(place.lora(n) / "training_graph.json")] for n in ("off", "on")]
    assert losses[0] == pytest.approx(losses[1], abs=1e-5)
    assert losses[0][-1] < losses[0][0]


@pytest.mark.parametrize("loading", ["bfloat16", "4bit", "8bit"])
def test_every_way_of_loading_learns(place, loading):
    place.train(place.host(loading), epochs=4)
    log = read(place.lora() / "training_log.json")
    graph = read(place.lora() / "training_graph.json")
    assert graph[-1]["loss"] < graph[0]["loss"] - 0.1
    assert (log["base_loaded_in_4bit"], log["base_loaded_in_8bit"]) == (loading == "4bit", loading == "8bit")
    assert log["loaded_as"] == loading
    assert log["computed_in"] == ("bfloat16" if loading == "bfloat16" else "float32")


def test_four_bits_learn_the_same_after_an_answer(place):
    host = place.host("4bit")
    place.train(place.host("4bit"), name="first")
    place.answer(host)
    place.train(host, name="after")
    assert place.weights("first") == place.weights("after")


def test_a_run_without_matplotlib_logs_it(place, monkeypatch):
    import importlib.util

    find_spec = importlib.util.find_spec
    monkeypatch.setattr(
        importlib.util, "find_spec", lambda name: None if name == "matplotlib" else find_spec(name)
    )
    place.train()
    assert not (place.lora() / "training_graph.png").exists()
    assert "matplotlib is not installed" in read(place.lora() / "training_log.json")["picture"]


def test_check_and_run_have_the_same_counts(place):
    from training_pro.engine.peft_engine import PeftEngine

    settings = place.settings(overlap=True, accumulation=3, epochs=1.5)
    report = PeftEngine().check(settings, place.host())
    place.train(overlap=True, accumulation=3, epochs=1.5)
    log = read(place.lora() / "training_log.json")
    checked = json.loads(json.dumps(report.as_json()))
    checked["notes"] = [text for text in checked["notes"] if not text.startswith(("Recall (how", "Time:"))]
    assert checked == log["data"]  # a run shows recall and time itself
    assert log["current_steps"] == report.steps
    assert sum(e["tokens"] for e in read(place.lora() / "training_graph.json")) > report.tokens


def test_check_estimates_the_time_by_an_earlier_run(place):
    from training_pro.engine.peft_engine import PeftEngine

    def time_notes():
        report = PeftEngine().check(place.settings(name="another"), place.host())
        return [note for note in report.notes if note.startswith("Time:")]

    assert ["no earlier run" in note for note in time_notes()] == [True]
    place.train(name="the-first", epochs=4)
    (note,) = time_notes()
    assert "if this run is as fast as the-first was with this model (CPU, " in note


def test_a_failed_injection_leaves_the_model_unchanged(place):
    from peft import LoraConfig
    from training_pro.core.errors import ModelError

    model = place.host().loaded_model().model
    kinds = {name: type(module) for name, module in model.named_modules()}
    with (
        pytest.raises(ModelError, match="This model can't be trained with a LoRA"),
        inject_lora(model, LoraConfig(target_modules=["q_proj", "input_layernorm"])),
    ):
        pass
    assert {name: type(module) for name, module in model.named_modules()} == kinds


@pytest.mark.parametrize(
    ("error", "more"),
    [
        (DataError, {"data": ["missing.txt"]}),
        (DataError, {"cutoff": 4096}),
        (SavingError, {"resume": "checkpoint-9"}),
    ],
)
def test_a_refused_run_loads_no_weights_and_writes_nothing(place, error, more):
    host = place.host()
    host.loaded_model = lambda: pytest.fail("the weights were loaded")
    before = read_tree(place.folders.user_data)
    with pytest.raises(error):
        place.train(host, **more)
    assert read_tree(place.folders.user_data) == before
