"""The notes on training: what each technique and parameter does in a run, not only that it is accepted."""

from __future__ import annotations

import json
from dataclasses import replace

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import EvaluationDone, Job, Step
from training_pro.engine.checks import reporters
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import trainer
from training_pro.hosts.standalone import StandaloneHost
from training_pro.schedulers import SCHEDULES, ScheduleSteps, lr_multipliers
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, record_batches, save_model
from training_pro.train_utils import is_logged
from transformers import TrainerCallback
from transformers.integrations import integration_utils

ONE_STEP = {
    "method": "full", "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0, "batch_size": 16,
    "max_steps": 1, "learning_rate": 0.01,
}  # fmt: skip


def base_weights(place):
    return load_file(place.tiny / "model.safetensors")


def full_weights(place, name="a", **more):
    place.train(name=name, **{**ONE_STEP, **more})
    return load_file(place.folders.models / name / "model.safetensors")


def total_change(place, name, **more):
    before, after = base_weights(place), full_weights(place, name, **more)
    return torch.cat([(after[key].float() - before[key].float()).flatten() for key in sorted(before)])


def steps_of(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **more)
    return [event for event in job.log.since(0) if isinstance(event, Step)]


@pytest.mark.parametrize("schedule", ["constant", "linear", "cosine", "exponential", "step_decay"])
def test_warmup_is_used_in_conjunction_with_other_schedulers(schedule):
    rates = lr_multipliers(SCHEDULES[schedule].phases(ScheduleSteps(100, 10, warmup=5)), 100)
    assert 0 < rates[0] < 0.5 and rates[:5] == sorted(rates[:5])
    assert max(rates) == pytest.approx(1.0) and rates[4] == pytest.approx(1.0, abs=0.05)


def test_the_scheduled_rates_are_the_rates_of_the_steps(place):
    """Warmup in steps, then the decrease: the rate of each step is in the log and on the curve."""
    asked = {"schedule": "linear", "warmup_steps": 2, "epochs": 2, "learning_rate": 1e-3}
    rates = [step.learning_rate for step in steps_of(place, **asked)]
    plan = ScheduleSteps(len(rates), len(rates) // 2, warmup=2)
    expected = [1e-3 * factor for factor in lr_multipliers(SCHEDULES["linear"].phases(plan), len(rates))]
    assert rates == pytest.approx(expected)
    assert [entry["learning_rate"] for entry in read_graph(place) if "loss" in entry] == pytest.approx(rates)


def test_a_warmup_ratio_is_a_share_of_all_steps(place):
    rates = [s.learning_rate for s in steps_of(place, schedule="constant", warmup_steps=0.25, epochs=2)]
    assert len(set(rates)) > 1 and rates.index(max(rates)) + 1 == round(0.25 * len(rates))


def test_weight_decay_is_decoupled_from_the_optimization_step_in_adamw(place):
    """Two runs that differ in nothing else differ by lr * decay * weight."""
    plain, decayed = full_weights(place, "a"), full_weights(place, "b", weight_decay=0.5)
    before = base_weights(place)
    for name in before:
        if "norm" not in name:
            shrunk = 0.01 * 0.5 * before[name]
            assert torch.allclose(plain[name] - decayed[name], shrunk, atol=1e-6), name


def test_weight_decay_is_l2_regularization_in_sgd(place):
    """L' = L + decay / 2 * sum(weight ** 2) adds decay * weight to the gradient."""
    plain = full_weights(place, "a", optimizer="sgd")
    decayed = full_weights(place, "b", optimizer="sgd", weight_decay=0.5)
    before = base_weights(place)
    for name in before:
        share = 0 if "norm" in name else 0.5
        assert torch.allclose(plain[name] - decayed[name], 0.01 * share * before[name], atol=1e-6), name


def test_weight_decay_spares_biases_and_layer_norms(place):
    """In a GPT-2, whose layers and norms have biases."""
    host = StandaloneHost(place.folders, model=str(save_model(place, "gpt2", tied=False)))
    for name, decay in (("a", 0.0), ("b", 0.5)):
        place.train(host, name=name, **{**ONE_STEP, "weight_decay": decay})
    without, decayed = (load_file(place.folders.models / name / "model.safetensors") for name in "ab")
    spared = {name for name, weight in without.items() if weight.equal(decayed[name])}
    assert spared == {name for name in without if name.endswith(".bias") or ".ln_" in name}
    assert sum(name.endswith("c_attn.bias") for name in spared) == 2


def test_a_gradient_below_the_max_norm_is_not_scaled(place):
    whole = full_weights(place, "whole", optimizer="sgd")
    limited = full_weights(place, "limited", optimizer="sgd", max_grad_norm=1000)
    assert all(weight.equal(limited[name]) for name, weight in whole.items())


@pytest.mark.parametrize("norm", [0.3, 0.05])
def test_a_gradient_above_the_max_norm_is_scaled_down_to_it(place, norm):
    """g' = norm / |g| * g: with plain gradient descent the change has the length lr * norm, and its direction."""
    whole = total_change(place, "whole", optimizer="sgd")
    clipped = total_change(place, "clipped", optimizer="sgd", max_grad_norm=norm)
    assert whole.norm() > 0.01 * norm
    assert float(clipped.norm()) == pytest.approx(0.01 * norm, rel=1e-3)
    assert torch.cosine_similarity(whole, clipped, dim=0) > 0.999


def test_gradient_checkpointing_saves_memory_and_changes_no_weight(place):
    for name, value in (("a", "off"), ("b", "on")):
        place.train(name=name, gradient_checkpointing=value, max_steps=2)
    assert place.weights("a") == place.weights("b")
    off, on = (
        PeftEngine().check(place.settings(gradient_checkpointing=value, cutoff=64), place.host()).memory.total
        for value in ("off", "on")
    )
    assert on < off


@pytest.mark.parametrize(
    "parameter", [{"adam_beta1": 0.5}, {"adam_beta2": 0.9}, {"adam_epsilon": 1e-3}, {"label_smoothing": 0.1}]
)
def test_the_betas_and_the_epsilon_reach_the_optimizer(place, parameter):
    place.train(max_steps=3)
    place.train(name="b", max_steps=3, **parameter)
    assert place.weights("a") != place.weights("b")


def test_a_seed_decides_the_order_and_the_weights(place):
    for name, seed in (("a", 42), ("b", 42), ("c", 43)):
        place.train(name=name, seed=seed, max_steps=2)
    assert place.weights("a") == place.weights("b") != place.weights("c")


def test_evaluation_strategy_no_steps_and_epoch(place):
    """No: without data for it. Steps: every so many. Epoch: at the end of each, with 0 steps."""
    measured = []
    for name, more in (
        ("a", {}), ("b", {"eval_share": 0.2, "eval_every": 2}), ("c", {"eval_share": 0.2, "eval_every": 0}),
    ):  # fmt: skip
        job = Job("training", "a test")
        place.train(name=name, job=job, epochs=2, batch_size=3, **more)
        events = job.log.since(0)
        measured.append({event.step for event in events if isinstance(event, EvaluationDone) and event.step})
        steps = max(event.step for event in events if isinstance(event, Step))
    assert measured[0] == set()
    assert measured[1] == {*range(2, steps + 1, 2), steps}
    assert measured[2] == {steps // 2, steps}


def test_save_strategy_no_steps_and_epoch(place):
    saved = []
    for name, more in (
        ("a", {"save_each_epoch": False}), ("b", {"save_each_epoch": False, "save_every": 3}),
        ("c", {"save_each_epoch": True}),
    ):  # fmt: skip
        place.train(name=name, epochs=2, backup_minutes=0, **more)
        saved.append({int(path.name.split("-")[1]) for path in place.lora(name).glob("checkpoint-*")})
    assert saved[:2] == [set(), {3, 6}] and saved[2] == {4, 8}


def test_group_by_length_groups_samples_of_roughly_the_same_length(place, monkeypatch):
    rows = [json.dumps({"text": "one " * (1 + 7 * n % 20)}) for n in range(24)]
    place.write("rows.jsonl", "\n".join(rows))
    spreads = []
    for name, order in (("a", "shuffled"), ("b", "by_length")):
        records = record_batches(monkeypatch, trainer)
        place.train(name=name, data=["rows.jsonl"], cutoff="auto", batching=order)
        spreads.append(sum(max(record.lengths) - min(record.lengths) for record in records))
        monkeypatch.undo()
    assert spreads[1] < spreads[0] / 2


@pytest.mark.parametrize(("first", "expected"), [(True, [1, 3, 6, 8]), (False, [3, 6, 8])])
def test_logging_steps_is_the_number_of_steps_between_two_logs(place, monkeypatch, first, expected):
    logged = []

    class Recorder(TrainerCallback):
        def on_log(self, args, state, control, **_):
            logged.append((state.global_step, args.run_name))

    monkeypatch.setattr(reporters, "find_spec", lambda name: name)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, "wandb", Recorder)
    place.train(report_to="wandb", run_name="mine", logging_steps=3, logging_first_step=first, epochs=2)
    assert logged == [(step, "mine") for step in expected]


def test_gradient_checkpointing_is_never_reentrant(place, monkeypatch):
    """As gradient_checkpointing_kwargs=dict(use_reentrant=False) in the notes."""
    function, calls = torch.utils.checkpoint._checkpoint_without_reentrant_generator, []

    def record(*arguments, **more):
        calls.append(arguments)
        return function(*arguments, **more)

    monkeypatch.setattr(torch.utils.checkpoint, "_checkpoint_without_reentrant_generator", record)
    monkeypatch.setattr(torch.utils.checkpoint, "CheckpointFunction", None)  # the reentrant one
    place.train(gradient_checkpointing="on", max_steps=1)
    assert calls


def test_rows_of_preferences_are_refused_until_their_replies_are_named(place):
    """Reinforcement learning is not here; the preferred replies can be trained on."""
    rows = [json.dumps({"prompt": f"What is {n}?", "chosen": f"It is {n}.", "rejected": "No."}) for n in range(8)]
    place.write("preferences.jsonl", "\n".join(rows))
    asked = {"data": ["preferences.jsonl"], "cutoff": "auto"}
    (problem,) = PeftEngine().check(place.settings(**asked), place.host()).problems
    assert "the rows have the columns prompt, chosen, rejected, and none of them is recognized" in problem
    page = read_page("reinforcement learning and preferences (DPO)")
    columns = page.partition("such as ")[2].removesuffix(".")
    report = PeftEngine().check(place.settings(columns=columns, **asked), place.host())
    assert report.problems == () and report.examples == 8 and report.trained_tokens < report.tokens


def test_safetensors_are_what_is_saved(place):
    place.train(max_steps=2, save_every=1)
    assert list(place.lora().rglob("*.safetensors"))
    assert not list(place.lora().rglob("*model*.bin"))


def test_check_advises_a_slower_pace_for_all_weights_than_for_a_lora(place):
    """Continued pre-training needs a slower learning pace, against catastrophic forgetting."""
    lora, full = (
        PeftEngine().check(place.settings(method=method, learning_rate=2e-3), place.host()).advice
        for method in ("lora", "full")
    )
    assert not any("Learning Rate" in text for text in lora)
    assert any("Learning Rate 0.002 is far above the usual value (1e-05)" in text for text in full)


def test_workers_load_the_same_data(place):
    place.train()
    place.train(name="b", workers=1, tf32=False)
    assert place.weights("a") == place.weights("b")


def test_intervals_smaller_than_1_are_a_ratio_of_the_total_training_steps(place):
    """Of eight steps: saved every half, evaluated every quarter; the plan, the suggestion and the disk agree."""
    asked = {"save_every": 0.5, "eval_every": 0.25, "eval_share": 0.2, "epochs": 2, "save_each_epoch": False}
    job = Job("training", "a test")
    place.train(job=job, backup_minutes=0, batch_size=3, **asked)
    events = job.log.since(0)
    steps = max(event.step for event in events if isinstance(event, Step))
    measured = {event.step for event in events if isinstance(event, EvaluationDone) and event.step}
    saved = {int(path.name.split("-")[1]) for path in place.lora().glob("checkpoint-*")}
    every = -(-steps // 4)
    assert measured == {*range(every, steps + 1, every), steps}
    assert saved == set(range(-(-steps // 2), steps + 1, -(-steps // 2)))
    log = json.loads((place.lora() / "training_parameters.json").read_text(encoding="utf-8"))
    assert (log["save_every"], log["eval_every"]) == (0.5, 0.25)


def test_a_checked_run_names_the_checkpoints_of_a_share(place):
    share, steps = (
        PeftEngine().check(place.settings(save_every=every, epochs=4, save_each_epoch=False), place.host())
        for every in (0.25, 4)
    )
    assert share.steps == 16 and replace(share.disk, free=0) == replace(steps.disk, free=0)


def test_logging_steps_below_1_are_a_ratio_of_the_total_training_steps():
    assert [step for step in range(1, 41) if is_logged(step, 40, 0.25, first=True)] == [1, 10, 20, 30, 40]
    values = training_settings({"name": "a", "data": ["a.txt"], "logging_steps": "0.25"}).values()
    assert values["logging_steps"] == 0.25


@pytest.mark.parametrize("key", ["save_every", "eval_every", "logging_steps"])
def test_an_interval_above_1_is_a_whole_number_of_steps(key):
    assert training_settings({"name": "a", "data": ["a.txt"], key: 5.0}).values()[key] == 5
    with pytest.raises(
        SettingsError, match=r"1\.5 is not a whole number\. Allowed: .* or a share of the run \(below 1\)"
    ):
        training_settings({"name": "a", "data": ["a.txt"], key: 1.5})
