"""A whole run on the tiny model: its files, events, weights and seeds, and the learning rate of each weight."""

from __future__ import annotations

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load
from training_pro.core.errors import DataError, SavingError
from training_pro.core.jobs import Advice, CheckpointSaved, Job, MachineUse, Note, RunPlanned, Stage, Step
from training_pro.records.folder import PARAMETERS
from training_pro.settings.files import convert_values
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.engine.inference.references import prepared
from training_pro.tests.engine.watching import at, changing, events_of, optimizer_groups, read, stopping_at, texts
from training_pro.tests.tiny import read_tree
from transformers import AutoModelForCausalLM

WEIGHTS = {"adapter_config.json", "adapter_model.safetensors"}
RESUME = {"optimizer.pt", "rng_state.pth", "run_state.json", "scheduler.pt", "trainer_state.json"}
RECORDS = {"train_dataset_sample.json", "report.html", "training_prompt.json", "training_graph.json"}
RECORDS |= {"training_graph.png", "training_log.json", "training_parameters.json", "events.jsonl"}
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
    sample = read(place.lora() / "train_dataset_sample.json")
    story = (place.folders.datasets / "story.txt").read_text()
    assert len(sample) == 10 and story.startswith(sample[0]["value"])
    assert all(entry.keys() == {"value"} and entry["value"] in story for entry in sample)


def test_it_loads_with_plain_peft_and_its_settings_are_those_of_the_run(with_lora):
    base = AutoModelForCausalLM.from_pretrained(with_lora.tiny).eval()
    ids = torch.arange(20)[None]
    with torch.no_grad():
        before = base(ids).logits
        after = PeftModel.from_pretrained(base, with_lora.lora()).eval()(ids).logits
    assert (before - after).abs().max() > 0.01
    assert {weight.dtype for weight in load(with_lora.weights()).values()} == {torch.float32}
    values = read(with_lora.lora() / "training_parameters.json")
    assert values["made_by"] == "Training PRO"
    assert training_settings(convert_values(values).values) == with_lora.settings()


def reference_loss(place, rows, **more):
    """Reference: the mean loss over all predicted tokens of a batch."""
    data = prepared(place, **more)
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


@pytest.mark.long
@pytest.mark.parametrize("loading", ["bfloat16", "4bit", "8bit"])
def test_every_way_of_loading_learns_also_after_an_answer(place, loading):
    place.train(place.host(loading), epochs=4)
    log, graph = read_log(place), read_graph(place)
    assert graph[-1]["loss"] < graph[0]["loss"] - 0.1
    assert (log["base_loaded_in_4bit"], log["base_loaded_in_8bit"]) == (loading == "4bit", loading == "8bit")
    assert (log["loaded_as"], log["computed_in"]) == (loading, loading if loading == "bfloat16" else "float32")
    if loading == "4bit":
        host = place.host("4bit")
        place.answer(host)
        place.train(host, name="after", epochs=4)
        assert place.weights("after") == place.weights()


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


SPLIT = {"eval_share": 0.2, "hard_cut": "\\n", "cutoff": 16, "dropout": 0.1, "max_steps": 4}


def seeds_of(place, name="a"):
    values = read(place.lora(name) / PARAMETERS)
    return {key: values[key] for key in ("seed", "data_seed")}


def test_a_drawn_seed_is_shown_recorded_and_repeats_the_run(place):
    job = Job("training", "a test")
    place.train(job=job, seed=-1, **SPLIT)
    seed = seeds_of(place)["seed"]
    assert seed >= 0 and f"Seed {seed}: picked at random and saved with the run." in texts(job, Note)
    assert (read_log(place)["seed"], read_log(place)["data_seed"]) == (seed, seed)
    place.train(name="again", seed=seed, **SPLIT)
    assert place.weights("again") == place.weights()
    place.train(name="other", seed=-1, max_steps=1)
    assert seeds_of(place, "other")["seed"] != seed


def test_a_resume_with_minus_one_takes_the_seed_of_the_checkpoint(place):
    place.train(job=stopping_at(2), seed=-1, data_seed=-1, **SPLIT)
    seeds, job = seeds_of(place), Job("training", "a test")
    with pytest.raises(SavingError, match=r"seed \(was \d+ and is now 7\)"):
        place.train(resume="newest", **SPLIT, **{**seeds, "seed": 7})
    place.train(job=job, resume="newest", seed=-1, data_seed=-1, **SPLIT)
    assert seeds_of(place) == seeds
    assert f"Seed {seeds['seed']}: taken from the checkpoint." in texts(job, Note)
    place.train(name="whole", **seeds, **SPLIT)
    assert place.weights() == place.weights("whole")


ONE_STEP = {"max_steps": 1, "optimizer": "sgd", "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0}


def after_a_step(place, **settings):
    """Weights by name after one plain step of SGD."""
    name = f"run-{len(list(place.folders.loras.glob('*')))}"
    place.train(name=name, **{**ONE_STEP, **settings})
    return load(place.weights(name))


def test_lora_b_learns_faster_by_the_factor(place):
    plain, plus = after_a_step(place), after_a_step(place, lora_plus=16)
    for name in plain:
        if "lora_B" in name:  # zero at the start
            assert plain[name].abs().max() > 0
            assert (plus[name] - 16 * plain[name]).abs().max() <= 1e-6 * plus[name].abs().max()
        else:
            assert plus[name].equal(plain[name])


def test_the_head_learns_at_its_share(place):
    runs = ({"learning_rate": 1e-9}, {}, {"head_rate": 0.25})
    untrained, plain, slow = (after_a_step(place, train_head=True, **more) for more in runs)
    assert any("lora_" not in name for name in plain)
    for name in plain:
        share = 1.0 if "lora_" in name else 0.25
        change, plain_change = slow[name] - untrained[name], plain[name] - untrained[name]
        assert plain_change.abs().max() > 0 or "lora_A" in name
        assert (change - share * plain_change).abs().max() <= 1e-5 * plain_change.abs().max() + 1e-7


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adafactor"])
def test_the_schedule_and_the_curve_are_those_of_the_learning_rate(place, optimizer):
    """In the optimizer, LoRA B has a multiple of it; a live factor is for both."""
    options = {"schedule": "constant", "warmup_steps": 0, "optimizer": optimizer, "learning_rate": 1e-3}
    with optimizer_groups() as used:
        place.train(job=at({1: changing(rate_factor=0.5)}), max_steps=3, lora_plus=16, **options)
    assert [entry["learning_rate"] for entry in read_graph(place)] == pytest.approx([1e-3, 5e-4, 5e-4])
    rates = [sorted({group["lr"] for group in groups}) for groups in used]
    assert rates[0] == pytest.approx([1e-3, 1.6e-2]) and rates[-1] == pytest.approx([5e-4, 8e-3])
