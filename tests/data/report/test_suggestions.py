"""Suggested settings: what is proposed for which data, and what is left as it is."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_pro.chunking import SlicingRules
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.core.model_shape import ModelShape
from training_pro.data.report import MemoryModel, RunFacts, suggest_settings
from training_pro.data.resolve import suggest_cutoff
from training_pro.engine.checks.run_checks import rank_findings
from training_pro.settings.definitions import TextSettings
from training_pro.settings.parsing import training_settings
from training_pro.settings.target_layers import target_layers
from training_pro.tests.data.test_check_says import SMOL
from training_pro.train_utils import StepPlan

KEYS = ["batch_size", "epochs", "rank", "learning_rate", "warmup_steps", "save_every"]


class Lengths:
    """Examples of one length, all of their tokens trained."""

    def __init__(self, count: int, length: int) -> None:
        self._lengths = [length] * count

    def lengths(self) -> list[int]:
        return self._lengths

    learned = lengths


def facts(examples: int = 200, length: int = 100, *, free: int = 0, **values: object) -> RunFacts:
    settings = training_settings({"name": "a", "data": ["a.txt"], **values})
    steps = settings.steps
    plan = StepPlan(examples, steps.batch_size, steps.accumulation, steps.epochs, steps.max_steps)
    machine = DeviceMemory("cuda", 0, free) if free else None
    memory = MemoryModel.of(ModelCard("toy", SMOL, None, "bfloat16"), Lengths(examples, length), machine)
    return RunFacts(settings, plan, memory, examples * length)


def changes(run: RunFacts) -> dict[str, object]:
    return {key: value for s in suggest_settings(run) if not s.keep for key, value in s.values.items()}


def test_what_fits_is_kept_with_its_reason():
    suggestions = list(suggest_settings(facts()))
    assert [s.key for s in suggestions] == KEYS
    assert all(s.keep and s.why.endswith(".") for s in suggestions)
    assert [s.value for s in suggestions] == [4, 2.0, 32, 2e-4, 0.05, 0]


@pytest.mark.parametrize(
    ("values", "expected"),
    [
        ({"examples": 20}, {"epochs": 6.0}),
        ({"examples": 6000, "epochs": 15, "save_every": 500, "rank": 128}, {"epochs": 3.0}),
        ({"accumulation": 60}, {"accumulation": 50, "epochs": 10.0}),
        ({"accumulation": 16, "epochs": 9}, {"accumulation": 8}),
        ({"learning_rate": 1e-6}, {"learning_rate": 2e-4}),
        ({"learning_rate": 0.5}, {"learning_rate": 2e-4}),
        ({"learning_rate": 5e-3}, {"learning_rate": 2e-4}),
        ({"method": "full", "learning_rate": 1e-5}, {}),
        ({"method": "full", "learning_rate": 2e-2}, {"learning_rate": 1e-5}),
        ({"warmup_steps": 100}, {"warmup_steps": 0.05}),
        ({"save_each_epoch": False, "backup_minutes": 0}, {"save_every": 25}),
        ({"examples": 3000}, {"save_every": 200}),
        ({"max_steps": 5}, {}),
    ],
)
def test_suggestions(values, expected):
    assert changes(facts(**values)) == expected


def test_a_rank_with_fewer_weights_than_trained_tokens_is_raised_at_the_same_strength():
    run = replace(facts(rank=8, alpha=16), trained_tokens=20_000_000)
    rank, alpha = (changes(run)[key] for key in ("rank", "alpha"))
    assert rank > 8 and alpha / rank == 2
    assert changes(replace(run, trained_tokens=10**12))["rank"] == 128


def test_no_rank_is_suggested_that_check_then_calls_too_large():
    run = replace(facts(rank=8), trained_tokens=10**12)
    rank = changes(run)["rank"]
    assert (
        list(rank_findings(replace(run.settings.lora, rank=rank), ModelCard("toy", SMOL, None, "bfloat16"))) == []
    )
    assert changes(replace(run, settings=facts(rank=8, targets="q-v").settings))["rank"] == 128


def test_a_rank_that_is_too_large_for_some_layers_names_the_limit_of_each():
    card = ModelCard("toy", SMOL, None, "bfloat16")
    sides = ModelShape.of(SMOL).lora_sides(target_layers("all-linear"))
    smallest, largest = min(sides.values()), max(sides.values())
    (finding,) = rank_findings(replace(facts().settings.lora, rank=largest, targets="all-linear"), card)
    small = [f"{name}: {side}" for name, side in sorted(sides.items()) if side < largest]
    assert f"({', '.join(small)})" in finding.text and f"Use {smallest} or less" in finding.text


def test_a_batch_that_does_not_fit_is_divided_at_the_same_effective_batch():
    run = facts(length=512, batch_size=64, free=3 * 10**9)
    changed = changes(run)
    assert changed["batch_size"] < 64
    assert changed["batch_size"] * changed["accumulation"] == 64


@pytest.mark.parametrize(("cutoff", "expected"), [(64, 320), (320, None), (512, None)])
def test_the_longest_row_decides_about_the_cutoff(cutoff, expected):
    text = TextSettings(cutoff=cutoff)
    suggestion = suggest_cutoff(text, SlicingRules(cutoff=cutoff), ModelCard("toy", SMOL, None, "bfloat16"), 300)
    assert (suggestion.key, suggestion.keep) == ("cutoff", expected is None)
    assert suggestion.value == (expected or cutoff)
