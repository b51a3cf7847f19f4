"""Killed at random moments, also while saving, and resumed each time: the bytes are the same as without."""

from __future__ import annotations

import os
import random
import sys
import time
from contextlib import suppress

import pytest
import torch
from safetensors.torch import load_file
from training_pro.records.folder import loras
from training_pro.tests.engine.forked import Forks, kill
from training_pro.tests.engine.watching import read

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
RUN = {"epochs": 3, "dropout": 0.1, "learning_rate": 5e-3, "batch_size": 2, "save_every": 3}
RUN |= {"backup_minutes": 1e-6, "keep_checkpoints": 2}
KILLS = 20
VARIANTS = {
    "shuffled": {"packing": "off"},
    "packed": {"packing": "on"},
    "length_then_order": {"batching": "length_then_order", "switch_after": "steps", "switch_at": 11},
}


@pytest.fixture(scope="module")
def forks():
    client = Forks()
    yield client
    client.close()


def curve(folder):
    graph = read(folder / "training_graph.json")
    return [{k: v for k, v in entry.items() if k not in ("seconds", "eval_seconds")} for entry in graph]


def refuse_broken(folder):
    """Check that every checkpoint a run could resume from is complete."""
    for checkpoint in loras.resumable_checkpoints(folder):
        load_file(checkpoint.folder / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.load(checkpoint.folder / name, weights_only=False)
        for name in ("run_state.json", "trainer_state.json"):
            read(checkpoint.folder / name)


def wait(seconds, part_folder):
    """Wait, and then until a checkpoint is being written, if its folder is given."""
    time.sleep(seconds)
    until = time.monotonic() + 2
    while part_folder and time.monotonic() < until and not any(part_folder.glob("checkpoint-*")):
        time.sleep(0.0005)


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_and_resumed(place, forks, variant):
    """At random moments, every second time while saving, and resumed after each kill."""
    variant, rng, began = VARIANTS[variant], random.Random(os.urandom(8)), time.monotonic()
    forks.begin(place, name="whole", **RUN, **variant)
    assert forks.end() == "finished"
    seconds, killed, runs = time.monotonic() - began, 0, 0
    while killed < KILLS:
        runs, ended = runs + 1, ""
        name = f"run-{runs}"
        while ended != "finished":
            number = forks.begin(place, name=name, resume="newest", **RUN, **variant)
            if killed < KILLS:
                wait(rng.uniform(0, seconds), place.lora(name) / ".part" if killed % 2 else None)
                with suppress(ProcessLookupError):  # it has already ended
                    kill(number)
            ended = forks.end()
            assert ended in ("killed", "finished")
            killed += ended == "killed"
            refuse_broken(place.lora(name))
        assert place.weights(name) == place.weights("whole")
        assert curve(place.lora(name)) == curve(place.lora("whole"))
        assert [path for path in place.folders.user_data.rglob("*") if ".part" in path.name] == []
