"""Killed at random moments, also while saving, and resumed each time: the bytes are the same as without."""

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
TIMES = ("seconds", "eval_seconds")
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
    graph = json.loads((folder / "training_graph.json").read_text(encoding="utf-8"))
    return [{key: value for key, value in entry.items() if key not in TIMES} for entry in graph]


def refuse_broken(folder):
    """Check that every checkpoint a run could resume from is complete."""
    for checkpoint in loras.resumable_checkpoints(folder):
        load_file(checkpoint.folder / "adapter_model.safetensors")
        for name in ("optimizer.pt", "scheduler.pt", "rng_state.pth"):
            torch.load(checkpoint.folder / name, weights_only=False)
        for name in ("run_state.json", "trainer_state.json"):
            json.loads((checkpoint.folder / name).read_text(encoding="utf-8"))


def left_over(place):
    return [str(path) for path in place.folders.user_data.rglob("*") if ".part" in path.name]


@dataclass
class KillStats:
    """Statistics: runs, kills, kills while saving, and the step of each kill."""

    runs: int = 0
    kills: int = 0
    in_saving: int = 0
    steps: list[int] = field(default_factory=list)


def killed_and_resumed(place, forks, variant, kills, rng):
    """Kill at random moments, every second time while saving, and resume after each kill."""
    forks.begin(place, name="whole", **RUN, **variant)
    began = time.monotonic()
    assert forks.end() == "finished"
    seconds, stats = time.monotonic() - began, KillStats()
    while stats.kills < kills:
        stats.runs += 1
        name, ended = f"run-{stats.runs}", ""
        part_folder = place.lora(name) / ".part"
        while ended != "finished":
            number = forks.begin(place, name=name, resume="newest", **RUN, **variant)
            if stats.kills < kills:
                time.sleep(rng.uniform(0, seconds))
                if stats.kills % 2:
                    wait_for_saving(part_folder, rng)
                with suppress(ProcessLookupError):  # it has already ended
                    kill(number)
            ended = forks.end()
            assert ended in ("killed", "finished")
            refuse_broken(place.lora(name))
            if ended == "killed":
                stats.kills += 1
                stats.in_saving += any(part_folder.glob("checkpoint-*"))
                stats.steps.append(max((c.step for c in loras.resumable_checkpoints(place.lora(name))), default=0))
        assert place.weights(name) == place.weights("whole")
        assert curve(place.lora(name)) == curve(place.lora("whole"))
        assert left_over(place) == []
    return stats


def wait_for_saving(part_folder, rng, most=2.0):
    """Wait until a checkpoint is being written, and a few milliseconds more."""
    until = time.monotonic() + most
    while time.monotonic() < until and not any(part_folder.glob("checkpoint-*")):
        time.sleep(0.0005)
    time.sleep(rng.uniform(0, 0.006))


@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_twice_and_resumed(place, forks, variant, record_property):
    stats = killed_and_resumed(place, forks, VARIANTS[variant], 2, random.Random(variant))
    record_property("killed", f"{variant}: {stats}")
    assert stats.kills == 2


@pytest.mark.long
@pytest.mark.parametrize("variant", VARIANTS)
def test_killed_twenty_times_and_resumed(place, forks, variant, record_property):
    stats = killed_and_resumed(place, forks, VARIANTS[variant], 20, random.Random(os.urandom(8)))
    record_property("killed", f"{variant}: {stats}")
    assert stats.kills == 20
