"""LoRA+ and the learning rate of the head: the exact rate of each weight."""

from __future__ import annotations

import pytest
from safetensors.torch import load
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.engine.watching import at, changing, optimizer_groups, stopping_at

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


def test_a_resumed_run_has_the_same_rates(place):
    settings = {"lora_plus": 8, "train_head": True, "head_rate": 0.1, "learning_rate": 1e-3}
    place.train(name="whole", **settings)
    place.train(name="parts", job=stopping_at(1), **settings)
    place.train(name="parts", resume="newest", **settings)
    assert place.weights("parts") == place.weights("whole")
