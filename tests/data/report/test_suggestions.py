"""Suggested settings: what is proposed for which data, and what is left as it is."""

from __future__ import annotations

import csv
import re

import pytest
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import MemoryModel, suggest_settings
from training_pro.data.report.estimates import check_memory
from training_pro.settings.parsing import training_settings
from training_pro.tests.conftest import ROOT
from training_pro.tests.data.report.test_memory_estimate import FakeExamples
from training_pro.tests.data.test_check_says import SMOL
from training_pro.train_utils import StepPlan


def facts(examples: int = 200, length: int = 100, *, free: int = 0, tokens: int = 0, **values: object):
    settings = training_settings({"name": "a", "data": ["a.txt"], **values})
    steps = settings.steps
    plan = StepPlan(examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    machine = DeviceMemory("cuda", 0, free) if free else None
    card = ModelCard("toy", SMOL, None, "bfloat16")
    memory = MemoryModel.of(card, FakeExamples(*[length] * examples), machine)
    return settings, plan, memory, tokens or examples * length


def changes(run: tuple) -> dict[str, object]:
    return {key: value for s in suggest_settings(*run) if not s.keep for key, value in s.values.items()}


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"examples": 20}, {"epochs": 6.0}),
        ({"examples": 20, "chunking": "dementor", "epochs": 1}, {}),  # as in the preset by-heart-once
        ({"examples": 6000, "epochs": 15, "save_every": 500, "rank": 128}, {"epochs": 3.0}),
        ({"examples": 11, "batch_size": 64}, {"batch_size": 4, "accumulation": 1, "epochs": 10.0}),
        ({"learning_rate": 1e-2}, {"learning_rate": 2e-4}),
        ({"method": "full", "learning_rate": 1e-5}, {}),
        ({"method": "full", "learning_rate": 2e-2}, {"learning_rate": 1e-5}),
        ({"warmup_steps": 100}, {"warmup_steps": 0.05}),
        ({"warmup_steps": 0}, {"warmup_steps": 0.05}),
        ({"examples": 3000, "save_every": 1}, {"save_every": 75}),
        ({"save_each_epoch": False, "backup_minutes": 0}, {"save_every": 25}),
        ({"max_steps": 5}, {}),
        ({"length": 8000, "free": 10**9}, {}),  # not even one example fits
        ({"rslora": True}, {"learning_rate": 4e-5}),  # it acts 5.7 times as strongly
        ({"rslora": True, "learning_rate": 4e-5}, {}),
        ({"examples": 100_000, "max_steps": 1000}, {"save_every": 200, "rank": 64}),
        ({"examples": 1000, "batch_size": 200, "epochs": 4, "save_each_epoch": False, "backup_minutes": 20}, {}),
    ],
)
def test_suggestions(values, expected):
    assert changes(facts(**values)) == expected


def test_a_rank_with_fewer_weights_than_trained_tokens_is_raised_at_the_same_strength():
    changed = changes(facts(rank=8, alpha=16, tokens=20_000_000))
    rank, alpha = changed["rank"], changed["alpha"]
    assert rank > 8 and alpha / rank == 2
    assert changes(facts(rank=8, alpha=16, tokens=10**12))["rank"] == 128


def test_an_example_that_does_not_fit_alone_is_told_with_what_saves_memory():
    settings, _, memory, _ = facts(length=8000, free=10**9)
    (told,) = check_memory(memory, settings)
    assert "no room for the longest example" in told.text and "Gradient checkpointing offload (saves" in told.text
    for free in (0, 2 * 10**9, 10**11):  # unknown, room for a smaller batch, and for all
        settings, _, memory, _ = facts(length=8000, free=free)
        assert [*check_memory(memory, settings)] == []


def test_what_check_says_of_measurements_is_in_the_measurements():
    """Check called 1e-2 a usual rate, since the runs that forgot everything had the highest recall."""
    high, untrained = list[float](), 0.0
    for name in ("results.csv", "runs.csv"):
        with (ROOT / "bench" / "recipe_data" / name).open(encoding="utf-8") as file:
            runs = [run for run in csv.DictReader(file) if run["general_loss"]]
        untrained = max(untrained, *(float(run["general_loss"]) for run in runs if run["steps"] == "0"))
        for run in runs:
            is_high = float(run.get("rate") or run["arm"].endswith(("3e-3", "1e-2"))) >= 3e-3
            is_long = int(run["steps"]) > 20 and float(run["passes"]) > 1
            high += [float(run["general_loss"])] * (is_high and is_long)
    (advised,) = (s for s in suggest_settings(*facts(learning_rate=1e-2)) if s.key == "learning_rate")
    told = float(re.search(r"rose by at least ([0-9.]+) ", advised.why)[1])
    assert len(high) > 40 and min(high) - untrained >= told
