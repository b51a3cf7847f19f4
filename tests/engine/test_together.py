"""Two processes under torchrun against one with the same effective batch, and who writes what."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
from training_pro.core import processes
from training_pro.core.control import RunControl
from training_pro.engine import together
from training_pro.records.run_folder import RunFolder
from training_pro.tests.engine.architectures import graph
from training_pro.tests.tiny import tree
from training_pro.train_utils import StepPlan

ROOT = Path(__file__).resolve().parent.parent.parent


def rows(count):
    """Texts of unlike lengths."""
    words = ("the keeper of the lamp went down to the sea " * 2).split()
    texts = [" ".join(words[n % 5 : n % 5 + 3 + (n * 7) % 11]) + f" {n}." for n in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def torchrun(place, *more):
    """The command line of two processes on this machine, each with one thread."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    own = ["script.py", "train", "--model", str(place.tiny), "--user-data", str(place.folders.user_data)]
    quick = [
        "--data",
        "rows.jsonl",
        "--format",
        "text",
        "--cutoff",
        "32",
        "--rank",
        "4",
        "--sample-every",
        "never",
    ]
    return [*launch, *own, *quick, *more]


def started(place, *more):
    surroundings = {**os.environ, "OMP_NUM_THREADS": "1"}
    return subprocess.Popen(
        torchrun(place, *more),
        cwd=ROOT,
        env=surroundings,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(300)
def test_two_processes_learn_as_one_with_the_same_effective_batch(place):
    place.write("rows.jsonl", rows(40))
    same = {"data": ["rows.jsonl"], "format": "text", "epochs": 4, "alpha": 32, "learning_rate": 1e-3}
    place.train(name="one", **same, accumulation=2, batch_size=4, sample_every="never")
    with started(place, "--name", "two", "--epochs", "4", "--batch-size", "4", "--learning-rate", "1e-3") as run:
        out, said = run.communicate(timeout=280)
    assert run.returncode == 0, said
    assert out == ""
    assert "2 processes: a step takes 4 x 1 x 2 = 8 examples." in said
    assert said.count("step 20/20") == 1
    one, two = graph(place, "one"), graph(place, "two")
    assert len(one) == len(two) == 20
    assert np.allclose([e["loss"] for e in two], [e["loss"] for e in one], rtol=1e-5)
    assert np.allclose([e["gradient_norm"] for e in two], [e["gradient_norm"] for e in one], rtol=1e-4)
    files = [{name.replace("_state_0", "_state") for name in tree(place.lora(n))} for n in ("one", "two")]
    assert files[0] == files[1]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stop_reaches_all_of_them(place):
    place.write("rows.jsonl", rows(40))
    with started(place, "--name", "two", "--epochs", "1000") as run:
        told = ""
        while "step 1" not in told and run.poll() is None:
            told += run.stderr.readline()
        run.send_signal(signal.SIGINT)
        began = time.monotonic()
        told += run.communicate(timeout=120)[1]
    assert time.monotonic() - began < 60
    assert "Stopping after this step, with a checkpoint" in told
    assert "stopped at step" in told
    assert list(place.lora("two").glob("checkpoint-*"))


def test_the_arithmetic_of_several_processes():
    plan = StepPlan(40, 4, 1, 1, processes=2)
    assert (plan.per_step, plan.batches, plan.steps_per_epoch, plan.learned_twice) == (8, 5, 5, 0)
    uneven = StepPlan(41, 4, 2, 1, processes=2)
    assert (uneven.per_step, uneven.batches, uneven.steps_per_epoch, uneven.learned_twice) == (16, 6, 3, 7)
    assert StepPlan(41, 4, 2, 1).learned_twice == 0


def test_what_a_launcher_says(monkeypatch):
    assert (processes.count(), processes.rank(), processes.local_rank()) == (1, 0, 0)
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert (processes.count(), processes.rank(), processes.local_rank()) == (4, 3, 1)
    assert not processes.is_first()


def test_only_the_first_has_the_folder_of_the_run(monkeypatch, tmp_path):
    folder = RunFolder(tmp_path / "a", tmp_path)
    with together.only_the_first_writes(folder) as own:
        assert own is folder
    monkeypatch.setenv("RANK", "1")
    with together.only_the_first_writes(folder) as own:
        assert tmp_path not in own.path.parents
        own.path.mkdir()
    assert not own.path.exists()


def test_alone_there_is_nothing_to_agree_on():
    control = RunControl()
    assert together.agree(control, 5.0) == 5.0
    assert not control.stopping
    together.leave()
