"""Killed at random moments, in saving too, and resumed each time: the same bytes as if nothing had happened."""

from __future__ import annotations

import json
import os
import random
import sys
import time
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from training_pro.records import loras
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


def killed_and_resumed(place, forks, way, kills, chance):
    """Kill so many times, each time at a random moment, resuming after each; how many runs that took."""
    forks.begin(place, name="whole", **RUN, **way)
    began = time.monotonic()
    assert forks.end() == "finished"
    seconds, done, runs, while_saving = time.monotonic() - began, 0, 0, 0
    while done < kills:
        runs += 1
        name, ended = f"run-{runs}", ""
        while ended != "finished":
            number = forks.begin(place, name=name, resume="newest", **RUN, **way)
            if done < kills:
                time.sleep(chance.uniform(0, seconds))
                kill_if_there(number)
            ended = forks.end()
            assert ended in ("killed", "finished")
            done += ended == "killed"
            while_saving += ended == "killed" and any((place.lora(name) / ".part").glob("checkpoint-*"))
            refuse_broken(place.lora(name))
        assert place.weights(name) == place.weights("whole")
        assert curve(place.lora(name)) == curve(place.lora("whole"))
        assert left_over(place) == []
    return runs, done, while_saving


def kill_if_there(number):
    """A run that is done already may be gone."""
    with suppress(ProcessLookupError):
        kill(number)


@pytest.mark.parametrize("way", WAYS)
def test_killed_twice_and_resumed(place, forks, way):
    killed_and_resumed(place, forks, WAYS[way], 2, random.Random(way))


@pytest.mark.long
@pytest.mark.parametrize("way", WAYS)
def test_killed_twenty_times_and_resumed(place, forks, way, record_property):
    runs, done, while_saving = killed_and_resumed(place, forks, WAYS[way], 20, random.Random(os.urandom(8)))
    record_property("killed", f"{way}: {done} kills in {runs} runs, {while_saving} of them in saving")
    assert done == 20
