"""LoRA+ and the learning rate of the head: the exact rate of each weight."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load
from training_pro.core.jobs import Request, Step
from training_pro.tests.tiny import watched_job

ONE_STEP = {"max_steps": 1, "optimizer": "sgd", "schedule": "constant", "warmup_steps": 0, "max_grad_norm": 0}


def weights_after_a_step(place, **settings):
    """Weights by name after one plain step of SGD."""
    name = f"run-{len(list(place.folders.loras.glob('*')))}"
    place.train(name=name, **{**ONE_STEP, **settings})
    return load(place.weights(name))


def test_lora_b_learns_faster_by_the_factor(place):
    plain, plus = weights_after_a_step(place, rank=4), weights_after_a_step(place, rank=4, lora_plus=16)
    assert plain.keys() == plus.keys()
    for name in plain:
        if "lora_B" in name:  # zero at the start
            assert plain[name].abs().max() > 0
            assert (plus[name] - 16 * plain[name]).abs().max() <= 1e-6 * plus[name].abs().max()
        else:
            assert plus[name].equal(plain[name])


def test_the_head_learns_at_its_share(place):
    untrained = weights_after_a_step(place, rank=4, train_head=True, learning_rate=1e-9)
    plain = weights_after_a_step(place, rank=4, train_head=True, learning_rate=1e-2)
    slow = weights_after_a_step(place, rank=4, train_head=True, learning_rate=1e-2, head_rate=0.25)
    heads = [name for name in plain if "lora_" not in name]
    assert heads
    for name in plain:
        share = 0.25 if name in heads else 1.0
        change, plain_change = slow[name] - untrained[name], plain[name] - untrained[name]
        assert plain_change.abs().max() > 0 or "lora_A" in name
        assert (change - share * plain_change).abs().max() <= 1e-5 * plain_change.abs().max() + 1e-7


@pytest.mark.parametrize("optimizer", ["adamw_torch", "adafactor"])
def test_the_schedule_and_the_curve_are_those_of_the_learning_rate(place, optimizer):
    place.train(name="plus", max_steps=4, schedule="linear", optimizer=optimizer, lora_plus=8)
    place.train(name="plain", max_steps=4, schedule="linear", optimizer=optimizer)
    rates = [
        [entry["learning_rate"] for entry in json.loads((place.lora(name) / "training_graph.json").read_text())]
        for name in ("plus", "plain")
    ]
    assert rates[0] == rates[1]


def test_a_resumed_run_has_the_same_rates(place):
    settings = {"epochs": 2, "lora_plus": 8, "train_head": True, "head_rate": 0.1, "learning_rate": 1e-3}
    place.train(name="whole", **settings)
    stopped = watched_job(lambda job, event: job.control.ask(Request.STOP) if isinstance(event, Step) else None)
    assert place.train(name="parts", job=stopped, **settings).outcome == "stopped"
    assert place.train(name="parts", resume="newest", **settings).outcome == "finished"
    assert place.weights("parts") == place.weights("whole")


def test_halving_the_rate_halves_it_for_both(place, monkeypatch):
    from training_pro.engine.training import trainer

    seen = []
    step = trainer.RunTrainer._get_grad_norm

    def spy(self, *args, **kwargs):
        seen.append(sorted({group["lr"] for group in self.optimizer.param_groups}))
        return step(self, *args, **kwargs)

    monkeypatch.setattr(trainer.RunTrainer, "_get_grad_norm", spy)

    def halve(job, event):
        if isinstance(event, Step) and event.step == 1:
            live = job.control.live
            job.control.live = live.changed({"rate_factor": 0.5})

    job = watched_job(halve)
    place.train(job=job, max_steps=3, schedule="constant", warmup_steps=0, lora_plus=16, learning_rate=1e-3)
    assert seen[0] == pytest.approx([1e-3, 1.6e-2])
    assert seen[-1] == pytest.approx([5e-4, 8e-3])
