"""Killed at random moments, in saving too, and resumed each time: the same bytes as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import suppress
from dataclasses import dataclass, field

import pytest
import torch
from safetensors.torch import load_file
from training_pro.records.folder import loras
from training_pro.tests.engine.forked import Forks, kill

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
RUN = {
    "epochs": 3,
    "dropout": 0.1,
    "learning_rate": 5e-3,
    "batch_size": 2,
    "save_every": 3,
    "backup_minutes": 1e-6,
    "keep_checkpoints": 2,
    "sample_every": "never",
}
WAYS = {
    "shuffled": {"packing": "off"},
    "packed": {"packing": "on"},
    "length_then_order": {"batching": "length_then_order", "switch_after": "steps", "switch_at": 11},
}


@pytest.fixture(scope="module")
def forks():
    made = Forks()
    yield made
    made.close()


def curve(folder):
    graph = json.loads((folder / "training_graph.json").read_text(encoding="utf-8"))
    return [{key: value for key, value in entry.items() if key != "seconds"} for entry in graph]


def refuse_broken(folder):
    """Whatever a run would go on from can be read to its end."""
    for checkpoint in loras.to_go_on_from(folder):
        load_file(checkpoint.folder / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.load(checkpoint.folder / name, weights_only=False)
        for name in ("run_state.json", "trainer_state.json"):
            json.loads((checkpoint.folder / name).read_text(encoding="utf-8"))


def left_over(place):
    return [str(path) for path in place.folders.user_data.rglob("*") if ".part" in path.name]


@dataclass
class Toll:
    """How many runs it took, how many kills there were, how many of them in saving, and where each came."""

    runs: int = 0
    kills: int = 0
    in_saving: int = 0
    steps: list[int] = field(default_factory=list)


def killed_and_resumed(place, forks, way, kills, chance):
    """Kill so many times at random moments, every second time in saving, resuming after each."""
    forks.begin(place, name="whole", **RUN, **way)
    began = time.monotonic()
    assert forks.end() == "finished"
    seconds, toll = time.monotonic() - began, Toll()
    while toll.kills < kills:
        toll.runs += 1
        name, ended = f"run-{toll.runs}", ""
        aside = place.lora(name) / ".part"
        while ended != "finished":
            number = forks.begin(place, name=name, resume="newest", **RUN, **way)
            if toll.kills < kills:
                time.sleep(chance.uniform(0, seconds))
                if toll.kills % 2:
                    wait_for_saving(aside, chance)
                with suppress(ProcessLookupError):  # it is done already
                    kill(number)
            ended = forks.end()
            assert ended in ("killed", "finished")
            refuse_broken(place.lora(name))
            if ended == "killed":
                toll.kills += 1
                toll.in_saving += any(aside.glob("checkpoint-*"))
                toll.steps.append(max((c.step for c in loras.to_go_on_from(place.lora(name))), default=0))
        assert place.weights(name) == place.weights("whole")
        assert curve(place.lora(name)) == curve(place.lora("whole"))
        assert left_over(place) == []
    return toll


def wait_for_saving(aside, chance, most=2.0):
    """Until a checkpoint is being written, and a few milliseconds into that."""
    until = time.monotonic() + most
    while time.monotonic() < until and not any(aside.glob("checkpoint-*")):
        time.sleep(0.0005)
    time.sleep(chance.uniform(0, 0.006))


@pytest.mark.parametrize("way", WAYS)
def test_killed_twice_and_resumed(place, forks, way, record_property):
    toll = killed_and_resumed(place, forks, WAYS[way], 2, random.Random(way))
    record_property("killed", f"{way}: {toll}")
    assert toll.kills == 2


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_killed_twenty_times_and_resumed(place, forks, way, record_property):
    toll = killed_and_resumed(place, forks, WAYS[way], 20, random.Random(os.urandom(8)))
    record_property("killed", f"{way}: {toll}")
    assert toll.kills == 20
