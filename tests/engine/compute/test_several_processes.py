"""Runs of several processes: control from outside, lost processes, and the same result for any number of them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
import time
from contextlib import suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch.distributed as dist
from safetensors.numpy import load_file
from training_pro.core.errors import ModelError
from training_pro.core.jobs import Request, RunControl
from training_pro.engine.compute import distributed, peer_watch
from training_pro.records.remote import read_progress, send_request
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.engine.compute.test_distributed import ROOT, rows

FLAGS = [
    *("--data", "rows.jsonl", "--format", "text", "--cutoff", "32", "--rank", "4", "--alpha", "32"),
    *("--learning-rate", "1e-3", "--sample-every", "never", "--save-each-epoch", "false", "--keep-awake", "false"),
]


@pytest.fixture
def workspace(place):
    place.write("rows.jsonl", rows(80))
    return place


def start(place, name, processes, *more):
    """Start a run of several processes; with one, without a launcher."""
    launch = ["-m", "torch.distributed.run", "--standalone", "--nproc_per_node", str(processes)]
    user_data = ["--user-data", str(place.folders.user_data)]
    command = ["script.py", "train", "--model", str(place.tiny), *user_data, "--name", name, *FLAGS, *more]
    return subprocess.Popen(
        [sys.executable, *(launch if processes > 1 else []), *command],
        cwd=ROOT,
        env={**os.environ, "OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"},
        stderr=subprocess.PIPE,
        stdout=subprocess.DEVNULL,
        text=True,
        errors="replace",
    )


def train(place, name, processes, *more):
    with start(place, name, processes, *more) as run:
        stderr = run.communicate(timeout=280)[1]
    assert run.returncode == 0, stderr
    return stderr


def wait_for_step(place, name, step, run):
    while read_progress(name, place.folders).step < step:
        assert run.poll() is None
        time.sleep(0.1)


def rank_of(pid):
    with suppress(OSError):
        entries = Path(f"/proc/{pid}/environ").read_bytes().split(b"\0")
        return dict(entry.partition(b"=")[::2] for entry in entries).get(b"RANK", b"").decode()
    return ""


def children(pid):
    return [int(child) for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.parametrize(
    ("order", "numbers"),
    [
        (("--packing", "off"), (2, 4)),
        (("--packing", "on"), (4,)),
        (("--batching", "by_length"), (4,)),
        (("--batching", "length_then_order"), (4,)),
    ],
    ids=["shuffled", "packed", "by length", "length then order"],
)
def test_one_two_and_four_processes_learn_the_same(workspace, order, numbers):
    """With the same effective batch: 8 examples in each of 20 steps."""
    losses, weights = [], []
    for processes in (1, *numbers):
        name, accumulation = f"n{processes}", str(4 // processes)
        same = ("--epochs", "2", "--batch-size", "2", "--recall-passages", "0")
        train(workspace, name, processes, *same, "--accumulation", accumulation, *order)
        losses.append([entry["loss"] for entry in read_graph(workspace, name) if "loss" in entry])
        weights.append(load_file(workspace.lora(name) / "adapter_model.safetensors"))
    assert len(losses[0]) == 20
    for other, adapter in zip(losses[1:], weights[1:], strict=True):
        assert np.allclose(other, losses[0], rtol=1e-5)
        assert all(np.allclose(adapter[key], weights[0][key], atol=1e-5) for key in weights[0])


@pytest.mark.long
@pytest.mark.timeout(600)
@pytest.mark.skipif(sys.platform == "win32", reason="Windows has no SIGTERM")
@pytest.mark.parametrize("processes", [1, 2])
def test_sigterm_in_a_run_and_resuming_it_gives_the_same_adapter(workspace, processes):
    flags = ("--epochs", "15", "--batch-size", "4", "--recall-passages", "0")
    train(workspace, "whole", processes, *flags)
    with start(workspace, "cut", processes, *flags) as run:
        wait_for_step(workspace, "cut", 20, run)
        run.send_signal(signal.SIGTERM)
        stderr = run.communicate(timeout=120)[1]
    assert "'cut' stopped at step" in stderr
    assert processes > 1 or run.returncode == 0  # torchrun itself ends with the signal
    train(workspace, "cut", processes, *flags, "--resume")
    assert workspace.weights("cut") == workspace.weights("whole")


@pytest.mark.long
@pytest.mark.timeout(300)
def test_requests_of_another_program_reach_all_processes(workspace):
    folders = workspace.folders
    with start(workspace, "two", 2, "--epochs", "1000") as run:
        wait_for_step(workspace, "two", 2, run)
        send_request("two", "pause", folders)
        while not read_progress("two", folders).paused:
            time.sleep(0.1)
        time.sleep(3)
        paused_at = read_progress("two", folders).step
        time.sleep(3)
        assert read_progress("two", folders).step == paused_at
        send_request("two", "resume", folders)
        wait_for_step(workspace, "two", paused_at + 2, run)
        send_request("two", "wind-down", folders)
        stderr = run.communicate(timeout=120)[1]
    assert run.returncode == 0, stderr
    assert "'two' finished" in stderr and "has fallen to 0 (as requested)" in stderr


@pytest.mark.long
@pytest.mark.timeout(300)
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="processes are found in /proc")
def test_a_killed_process_ends_the_others_with_one_message(workspace):
    with start(workspace, "two", 2, "--epochs", "1000") as run:
        wait_for_step(workspace, "two", 2, run)
        os.kill(next(child for child in children(run.pid) if rank_of(child) == "1"), signal.SIGKILL)
        killed = time.monotonic()
        stderr = run.communicate(timeout=120)[1]
    assert run.returncode == 1
    assert time.monotonic() - killed < 60
    assert stderr.count("Another process of this run has ended or can't be reached.") == 1


def test_a_process_is_lost_if_its_beats_stop_and_not_before_its_first():
    times = peer_watch.PeerTimes()
    times.hear([1, 0], 0.0)
    assert times.lost(1000.0) == [0]
    times.hear([2, 1], 1000.0)
    times.hear([3, 1], 1000.0 + peer_watch.LOST_AFTER_SECONDS)
    assert times.lost(1000.0 + peer_watch.LOST_AFTER_SECONDS) == []
    assert times.lost(1001.0 + peer_watch.LOST_AFTER_SECONDS) == [1]


def test_silence_of_another_process_is_told_with_its_rank(monkeypatch):
    store = dist.TCPStore("127.0.0.1", 0, is_master=True, timeout=timedelta(seconds=30))
    for name, value in {"RANK": 0, "WORLD_SIZE": 2, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": store.port}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(peer_watch, "BEAT_SECONDS", 0.05)
    monkeypatch.setattr(peer_watch, "LOST_AFTER_SECONDS", 1.0)
    messages, told = [], threading.Event()
    with peer_watch.watch_peers(lambda message: (messages.append(message), told.set())):
        store.add("training-pro-beats-1", 1)  # the other process, whose beats end after the first
        assert told.wait(30)
    assert messages[0].startswith("Another process of this run (rank 1) could not be reached for 1 seconds, ")


def test_without_a_launcher_nobody_is_watched(monkeypatch):
    for name in ("RANK", "WORLD_SIZE", "MASTER_ADDR"):
        monkeypatch.delenv(name, raising=False)
    before = threading.active_count()
    with peer_watch.watch_peers():
        assert threading.active_count() == before


@pytest.mark.parametrize(
    "said",
    [
        "[gloo/transport/tcp/pair.cc:553] Connection closed by peer [10.9.0.2]:40182",
        "Connection reset by peer",
        "Timed out waiting 1800000ms for recv operation to complete",
    ],
)
def test_the_error_of_a_broken_connection_is_a_sentence(monkeypatch, said):
    monkeypatch.setattr(distributed, "_is_distributed", lambda: True)
    with pytest.raises(ModelError, match="has ended or can't be reached"), distributed.explain_lost_process():
        raise RuntimeError(said)


def test_other_errors_stay_as_they_are(monkeypatch):
    monkeypatch.setattr(distributed, "_is_distributed", lambda: True)
    with pytest.raises(RuntimeError, match="shapes"), distributed.explain_lost_process():
        raise RuntimeError("shapes cannot be multiplied")


@pytest.mark.parametrize("ended_by", [Request.PAUSE, Request.STOP])
def test_a_pause_of_several_processes_ends_by_a_resume_or_a_stop(monkeypatch, ended_by):
    """Another process was asked to pause; this one was not."""
    looks = iter([(True, False), (True, False), (ended_by is Request.STOP, ended_by is Request.STOP)])
    monkeypatch.setattr(distributed, "_is_distributed", lambda: True)
    monkeypatch.setattr(distributed, "any_rank", lambda *_: next(looks))
    monkeypatch.setattr(distributed, "time", SimpleNamespace(sleep=lambda _: None))
    control = RunControl()
    distributed.wait_while_paused(control)
    assert next(looks, None) is None and not control.asked(Request.PAUSE)
