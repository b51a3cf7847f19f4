"""bfloat16 weights lose small steps, and the advice about it matches that."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file
from training_pro.core.jobs import Advice, Job
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.watching import texts

HEAD = {"train_head": True, "max_steps": 12, "schedule": "constant", "epochs": 3}
SLOW = {**HEAD, "learning_rate": 1e-5}


def about_bfloat16(advice):
    return [text for text in advice if "bfloat16" in text]


@pytest.mark.parametrize(
    ("loading", "settings", "start"),
    [
        ("bfloat16", {"method": "full", "learning_rate": 1e-5}, "Method full: the model is in"),
        ("bfloat16", {**HEAD, "learning_rate": 1e-4}, ""),
        ("bfloat16", {**HEAD, "learning_rate": 1e-4, "head_rate": 0.1}, "Train Head: the model is in bfloat16"),
        ("bfloat16", {**SLOW, "head_rate": 10}, ""),
        ("bfloat16", {"learning_rate": 1e-5}, ""),
    ],
)
def test_check_gives_advice_on_small_rates_in_bfloat16(place, loading, settings, start):
    advice = about_bfloat16(PeftEngine().check(place.settings(**settings), place.host(loading)).advice)
    assert [text.startswith(start) for text in advice] == ([True] if start else [])


def test_a_run_gives_the_advice_of_check_and_it_is_right(place):
    changed = {}
    for loading in ("float32", "bfloat16"):
        host, job = place.host(loading), Job("training", "a test")
        before = host.loaded_model().model.get_output_embeddings().weight.detach().clone()
        place.train(host, job=job, name=f"in-{loading}", **SLOW)
        checked = PeftEngine().check(place.settings(name="new", **SLOW), host)
        assert about_bfloat16(texts(job, Advice)) == about_bfloat16(checked.advice)
        assert len(about_bfloat16(checked.advice)) == (loading == "bfloat16")
        weights = load_file(place.lora(f"in-{loading}") / "adapter_model.safetensors")
        (head,) = (weight for name, weight in weights.items() if "lm_head" in name and "lora" not in name)
        changed[loading] = float((head != before).float().mean())
    assert changed["float32"] > 0.95 and changed["bfloat16"] < 0.3
