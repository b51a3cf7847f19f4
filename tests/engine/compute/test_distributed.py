"""Several processes: the same result as one, control from outside, lost processes, and who writes files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
from safetensors.numpy import load_file
from training_pro.records.remote import read_progress, send_request
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.tiny import read_tree

ROOT = Path(__file__).resolve().parents[3]
FLAGS = "--data rows.jsonl --format text --cutoff 32 --rank 4 --alpha 32 --learning-rate 1e-3 --sample-every never"
LONG = "--save-each-epoch false --recall-passages 0"


def rows(count):
    """Rows of different lengths."""
    words = ("the keeper of the lamp went down to the sea " * 2).split()
    texts = [" ".join(words[n % 5 : n % 5 + 3 + (n * 7) % 11]) + f" {n}." for n in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def start(place, name, processes, flags):
    """Start a run of several processes; with one, without a launcher."""
    launch = f"-m torch.distributed.run --standalone --nproc_per_node {processes}".split()
    where = ["--model", str(place.tiny), "--user-data", str(place.folders.user_data), "--name", name]
    command = ["script.py", "train", *where, *FLAGS.split(), *flags.split()]
    # Saving and the report may take longer than the 30 seconds that torchrun gives on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"}
    options = {"stderr": subprocess.PIPE, "stdout": subprocess.DEVNULL, "text": True, "errors": "replace"}
    whole = [sys.executable, *(launch if processes > 1 else []), *command]
    return subprocess.Popen(whole, cwd=ROOT, env=environment, **options)


def train(place, name, processes, flags):
    with start(place, name, processes, flags) as run:
        stderr = run.communicate(timeout=280)[1]
    assert run.returncode == 0, stderr
    return stderr


def steps_of(place, name):
    return [entry for entry in read_graph(place, name) if "loss" in entry]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_processes_learn_as_one_with_the_same_effective_batch(place):
    for name in ("rows.jsonl", "more.jsonl"):
        place.write(name, rows(25))
    same = {"data": ["rows.jsonl", "more.jsonl"], "format": "text", "alpha": 32, "learning_rate": 1e-3}
    place.train(name="one", **same, epochs=4, accumulation=2, batch_size=4, eval_share=0.2, eval_every=7)
    stderr = train(place, "two", 2, "--data more.jsonl --epochs 4 --batch-size 4 --eval-share 0.2 --eval-every 7")
    assert "one step uses 8 examples (True Batch Size 4 x Gradient Accumulation 1 x 2 processes)." in stderr
    assert stderr.count("step 20/20") == 1
    one, two = steps_of(place, "one"), steps_of(place, "two")
    assert len(one) == len(two) == 20
    assert [e["tokens"] for e in two] == [e["tokens"] for e in one]
    assert np.allclose([e["loss"] for e in two], [e["loss"] for e in one], rtol=1e-5)
    assert np.allclose([e["gradient_norm"] for e in two], [e["gradient_norm"] for e in one], rtol=1e-4)
    files = [{name.replace("_state_0", "_state") for name in read_tree(place.lora(n))} for n in ("one", "two")]
    assert files[0] == files[1]
    one, two = ([e for e in read_graph(place, name) if "eval_loss" in e] for name in ("one", "two"))
    assert len(one[0]["eval_by_source"]) == 2
    assert [e["current_steps"] for e in one] == [e["current_steps"] for e in two] == [0, 7, 14, 20]
    for alone, shared in zip(one, two, strict=True):
        close = 1e-6 if alone["current_steps"] == 0 else 1e-5  # later, the weights themselves differ slightly
        assert shared["eval_loss"] == pytest.approx(alone["eval_loss"], rel=close)
        assert shared["eval_by_source"] == pytest.approx(alone["eval_by_source"], rel=close)
        assert (shared["eval_accuracy"], shared["eval_tokens"]) == (alone["eval_accuracy"], alone["eval_tokens"])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    "order", ["--packing off", "--packing on", "--batching length_then_order", "--batching not_known"]
)
def test_one_two_and_four_processes_learn_the_same(place, order):
    """With the same effective batch: 8 examples in each of 20 steps."""
    place.write("rows.jsonl", rows(80))
    for processes in (1, 2, 4):
        same = f"{LONG} --epochs 2 --batch-size 2 --accumulation {4 // processes} {order}"
        train(place, f"n{processes}", processes, same)
        losses = [entry["loss"] for entry in steps_of(place, f"n{processes}")]
        weights = load_file(place.lora(f"n{processes}") / "adapter_model.safetensors")
        if processes == 1:
            expected, expected_weights = losses, weights
        assert len(losses) == 20
        assert np.allclose(losses, expected, rtol=1e-5)
        assert all(np.allclose(weights[key], expected_weights[key], atol=1e-5) for key in weights)


def wait_for_step(place, name, step, run):
    while read_progress(name, place.folders).step < step:
        assert run.poll() is None
        time.sleep(0.1)


def is_rank_1(pid):
    with suppress(OSError):
        return b"\0RANK=1\0" in Path(f"/proc/{pid}/environ").read_bytes()


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_requests_reach_all_processes_and_a_killed_one_ends_the_others_with_one_message(place):
    folders = place.folders
    place.write("rows.jsonl", rows(80))
    with start(place, "two", 2, f"{LONG} --epochs 1000") as run:
        wait_for_step(place, "two", 2, run)
        send_request("two", "pause", folders)
        while not read_progress("two", folders).paused:
            time.sleep(0.1)
        paused_at = read_progress("two", folders).step
        send_request("two", "resume", folders)
        wait_for_step(place, "two", paused_at + 2, run)
        children = Path(f"/proc/{run.pid}/task/{run.pid}/children").read_text().split()
        os.kill(next(int(child) for child in children if is_rank_1(child)), signal.SIGKILL)
        stderr = run.communicate(timeout=120)[1]
    assert run.returncode == 1
    assert stderr.count("Another process of this run has ended or can't be reached.") == 1
