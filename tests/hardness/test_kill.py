"""Killed in every phase: what is on disk loads, and the next start ends with the same bits and no leftovers."""

from __future__ import annotations

import random
import shutil
import sys
import time
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

import pytest
from safetensors.torch import load_file
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.engine.forked import Forks, kill
from training_pro.tests.tiny import read_tree

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="there is no fork on Windows")
RUN = {
    "epochs": 2, "dropout": 0.1, "learning_rate": 5e-3, "batch_size": 2, "save_every": 3, "backup_minutes": 1e-6,
    "eval_share": 0.2, "eval_every": 3, "sample_every": "never",
}  # fmt: skip
TRAINING_PHASES = {"preparing": "", "training": "training", "evaluating": "evaluating", "final save": "saving"}
"""Phases of a run, and the stage whose announcement begins each; the first begins with the process."""
SAVING = "checkpoint"
PHASES = [*TRAINING_PHASES, SAVING, "merge", "gguf", "queue"]
LONGEST_SAVING_SECONDS = 2.0


@dataclass
class Killer:
    """Kills jobs at random moments in a workspace, against the results of undisturbed jobs."""

    place: Any
    forks: Forks
    seconds: dict[str, float]
    kills: int = 0

    def strike(self, phase: str, rng: random.Random, job: dict[str, Any], within: float) -> str:
        """Start a job, kill it at a random moment of a phase, and return how it ended."""
        pid = self.forks.start(self.place, announce=True, **job)
        stage = "ready" if phase in ("merge", "gguf", "queue") else TRAINING_PHASES.get(phase, "training")
        if not stage or self.forks.wait_for(stage):
            time.sleep(rng.uniform(0, within))
            if phase == SAVING:
                self._wait_for_checkpoint(job["name"], rng)
            with suppress(ProcessLookupError):
                kill(pid)
        ended = self.forks.end()
        self.kills += ended == "killed"
        return ended

    def _wait_for_checkpoint(self, name: str, rng: random.Random) -> None:
        part_folder, deadline = self.place.lora(name) / ".part", time.monotonic() + LONGEST_SAVING_SECONDS
        while time.monotonic() < deadline and not any(part_folder.glob("checkpoint-*")):
            time.sleep(0.0005)
        time.sleep(rng.uniform(0, 0.006))

    def train(self, phase: str, rng: random.Random, name: str) -> None:
        """Kill a run in a phase, resume it, and compare it with the undisturbed run."""
        run = {**RUN, "name": name, "resume": "newest"}
        ended = self.strike(phase, rng, run, self.seconds.get(phase, self.seconds["training"]))
        self.refuse_broken_adapter(name)
        if ended == "killed":
            ended = self._finish(run)
        assert ended == "finished"
        self.compare(name)

    def export(self, phase: str, rng: random.Random) -> None:
        """Kill a merge or an export, repeat it, and compare its files with those of an undisturbed one."""
        out = self.place.folders.models / "merged"
        job = {"job": phase, "lora": "whole", "out": str(out)}
        self.strike(phase, rng, job, self.seconds[phase])
        made = out if phase == "merge" else self.place.lora("whole") / "whole.gguf"
        shutil.rmtree(out, ignore_errors=True) if phase == "merge" else made.unlink(missing_ok=True)
        assert self._finish(job) == "finished"
        reference = self.place.folders.user_data / "reference" / phase
        assert read_tree(reference) == (read_tree(made) if made.is_dir() else {made.name: made.read_bytes()})

    def run_queue(self, rng: random.Random, name: str) -> None:
        """Kill a program in a run from its queue; the next one finishes that run."""
        job: dict[str, Any] = {"job": "queue", "add": [{**RUN, "name": name}]}
        ended = self.strike("queue", rng, job, self.seconds["queue"])
        self.refuse_broken_adapter(name)
        while ended == "killed":
            ended = self._finish({"job": "queue", "add": []})
        if not (
            self.place.lora(name) / "adapter_model.safetensors"
        ).exists():  # killed before it was in the queue, or begun
            assert self._finish({**RUN, "name": name, "resume": "newest"}) == "finished"
        self.compare(name)

    def compare(self, name: str) -> None:
        assert self.place.weights(name) == self.place.weights("whole")
        mine, whole = (
            [{key: entry[key] for key in entry if "seconds" not in key} for entry in read_graph(self.place, run)]
            for run in (name, "whole")
        )
        assert mine == whole

    def refuse_broken_adapter(self, name: str) -> None:
        for file in self.place.lora(name).glob("**/[!.]*/*.safetensors"):
            load_file(file)

    def leftovers(self) -> list[str]:
        names = (".part", ".making-", ".tmp")
        return [
            str(path) for path in self.place.folders.user_data.rglob("*") if any(n in path.name for n in names)
        ]

    def _finish(self, job: dict[str, Any]) -> str:
        self.forks.start(self.place, **job)
        return self.forks.end()


@pytest.fixture
def killer(place):
    """A workspace with an undisturbed result of every job, and the seconds that each phase took."""
    forks, seconds = Forks(), {}
    began = time.monotonic()
    forks.begin(place, **RUN, name="whole")
    seconds["preparing"], began = time.monotonic() - began, time.monotonic()
    assert forks.end() == "finished"
    seconds["training"] = seconds["queue"] = time.monotonic() - began
    seconds |= {"evaluating": 0.05, "final save": 0.3}
    for phase in ("merge", "gguf"):
        forks.start(place, job=phase, lora="whole", out=str(place.folders.models / "merged"))
        assert forks.wait_for("ready")
        began = time.monotonic()
        assert forks.end() == "finished"
        seconds[phase] = time.monotonic() - began
    reference = place.folders.user_data / "reference"
    (reference / "gguf").mkdir(parents=True)
    (place.folders.models / "merged").rename(reference / "merge")
    (place.lora("whole") / "whole.gguf").rename(reference / "gguf" / "whole.gguf")
    yield Killer(place, forks, seconds)
    forks.close()


@pytest.mark.parametrize(
    ("seed", "kills"), [(1, 6), *(pytest.param(seed, 20, marks=pytest.mark.hours) for seed in range(2, 12))]
)
def test_killed_in_every_phase(killer, proof, record_property, seed, kills):
    """By turns until as many jobs were killed; each case has a seed of its own."""
    record_property("what", "The program is killed (SIGKILL) in each phase, and then started again")
    number = 0
    while killer.kills < kills and number < kills * 3:
        phase = PHASES[number % len(PHASES)]
        number += 1
        with proof.case(f"{phase}, seed {seed}-{number}"):
            rng = random.Random(f"{seed}-{number}")
            if phase in ("merge", "gguf"):
                killer.export(phase, rng)
            elif phase == "queue":
                killer.run_queue(rng, f"run-{number}")
            else:
                killer.train(phase, rng, f"run-{number}")
            assert killer.leftovers() == []
    assert killer.kills >= kills
