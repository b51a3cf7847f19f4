"""bfloat16 weights lose small steps, and the advice about it matches that."""

from __future__ import annotations

import pytest
from safetensors.torch import load_file
from training_pro.core.jobs import Advice, Job
from training_pro.engine.peft_engine import PeftEngine

HEAD = {"train_head": True, "max_steps": 12, "schedule": "constant", "epochs": 3}


@pytest.mark.parametrize(
    ("loading", "settings", "start"),
    [
        ("bfloat16", {**HEAD, "learning_rate": 1e-5}, "Train Head: the model is in bfloat16"),
        (
            "bfloat16",
            {"method": "full", "learning_rate": 1e-5, "max_steps": 1},
            "Method full: the model is in",
        ),
        ("bfloat16", {**HEAD, "learning_rate": 1e-4}, ""),
        (
            "bfloat16",
            {**HEAD, "learning_rate": 1e-4, "head_rate": 0.1},
            "Train Head: the model is in bfloat16",
        ),
        ("bfloat16", {**HEAD, "learning_rate": 1e-5, "head_rate": 10}, ""),
        ("bfloat16", {"learning_rate": 1e-5, "max_steps": 1}, ""),
        ("float32", {**HEAD, "learning_rate": 1e-5}, ""),
    ],
)
def test_check_and_run_give_advice_on_small_rates_in_bfloat16(place, loading, settings, start):
    job = Job("training", "a test")
    from_check = PeftEngine().check(place.settings(**settings), place.host(loading)).advice
    place.train(place.host(loading), job=job, **settings)
    from_run = [event.text for event in job.log.since(0) if isinstance(event, Advice)]
    for advice in (from_check, from_run):
        matches = [text for text in advice if "bfloat16" in text]
        assert [text.startswith(start) for text in matches] == ([True] if start else [])


def test_the_advice_is_right(place):
    changed = {}
    for loading in ("float32", "bfloat16"):
        host = place.host(loading)
        before = host.loaded_model().model.get_output_embeddings().weight.detach().clone()
        place.train(host, name=f"in-{loading}", learning_rate=1e-5, **HEAD)
        weights = load_file(place.lora(f"in-{loading}") / "adapter_model.safetensors")
        (head,) = (weight for name, weight in weights.items() if "lm_head" in name and "lora" not in name)
        changed[loading] = float((head != before).float().mean())
    assert changed["float32"] > 0.95
    assert changed["bfloat16"] < 0.3
