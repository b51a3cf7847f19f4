"""Two processes under torchrun against one with the same effective batch size, and which of them write files."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest
import torch
from training_pro.core import dist_env
from training_pro.core.jobs import Request, RunControl
from training_pro.engine.compute import ModelCapabilities, distributed
from training_pro.engine.compute.loss import FullLogitsLoss
from training_pro.engine.inference.eval_loop import BatchLimit, EvalLoop
from training_pro.records.folder import RunFolder
from training_pro.tests.engine.architectures import make_model, random_examples, read_graph
from training_pro.tests.tiny import read_tree
from training_pro.train_utils import StepPlan

ROOT = Path(__file__).resolve().parents[3]


def rows(count):
    """Rows of different lengths."""
    words = ("the keeper of the lamp went down to the sea " * 2).split()
    texts = [" ".join(words[n % 5 : n % 5 + 3 + (n * 7) % 11]) + f" {n}." for n in range(count)]
    return "".join(json.dumps({"text": text}) + "\n" for text in texts)


def torchrun(place, *args):
    """Command line for two processes on this machine."""
    launch = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc_per_node", "2"]
    script = ["script.py", "train", "--model", str(place.tiny), "--user-data", str(place.folders.user_data)]
    options = [
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
    return [*launch, *script, *options, *args]


def start(place, *args):
    # Saving and the report may take longer than the 30 seconds that torchrun gives on a busy machine.
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "TORCH_ELASTIC_SHUTDOWN_TIMEOUT": "120"}
    return subprocess.Popen(
        torchrun(place, *args),
        cwd=ROOT,
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.timeout(300)
def test_two_processes_learn_as_one_with_the_same_effective_batch(place):
    for name in ("rows.jsonl", "more.jsonl"):
        place.write(name, rows(25))
    same = {"data": ["rows.jsonl", "more.jsonl"], "format": "text", "alpha": 32, "learning_rate": 1e-3}
    place.train(name="one", **same, epochs=4, accumulation=2, batch_size=4, eval_share=0.2, eval_every=7)
    flags = ["--name", "two", "--epochs", "4", "--batch-size", "4", "--learning-rate", "1e-3", "--alpha", "32"]
    evaluating = ["--data", "more.jsonl", "--eval-share", "0.2", "--eval-every", "7"]
    with start(place, *flags, *evaluating) as run:
        stdout, stderr = run.communicate(timeout=280)
    assert run.returncode == 0, stderr
    assert stdout == ""
    assert (
        "With 2 processes, one step uses 8 examples (True Batch Size 4 x Gradient Accumulation 1 x 2 processes)."
        in stderr
    )
    assert stderr.count("step 20/20") == 1
    one, two = ([e for e in read_graph(place, name) if "loss" in e] for name in ("one", "two"))
    assert len(one) == len(two) == 20
    assert np.allclose([e["loss"] for e in two], [e["loss"] for e in one], rtol=1e-5)
    assert np.allclose([e["gradient_norm"] for e in two], [e["gradient_norm"] for e in one], rtol=1e-4)
    files = [{name.replace("_state_0", "_state") for name in read_tree(place.lora(n))} for n in ("one", "two")]
    assert files[0] == files[1]
    assert_same_evaluations(place)


def assert_same_evaluations(place):
    """Each process evaluates a part of the validation split, and the results are those of the whole split."""
    one, two = ([e for e in read_graph(place, name) if "eval_loss" in e] for name in ("one", "two"))
    assert [e["current_steps"] for e in one] == [e["current_steps"] for e in two] == [0, 7, 14, 20]
    for alone, shared in zip(one, two, strict=True):
        close = 1e-6 if alone["current_steps"] == 0 else 1e-5  # later, the weights themselves differ slightly
        assert shared["eval_loss"] == pytest.approx(alone["eval_loss"], rel=close)
        assert shared["eval_by_source"] == pytest.approx(alone["eval_by_source"], rel=close)
        assert (shared["eval_accuracy"], shared["eval_tokens"]) == (alone["eval_accuracy"], alone["eval_tokens"])
        assert len(shared["eval_by_source"]) == 2


@pytest.mark.long
@pytest.mark.timeout(300)
def test_two_processes_change_the_phase_by_loss_and_evaluate_it_together(place):
    place.write("rows.jsonl", rows(40))
    order = ["--batching", "length_then_order", "--switch-after", "loss"]
    band = ["--switch-loss-low", "5", "--switch-loss-high", "6.1", "--learning-rate", "1e-2"]
    more = ["--name", "a", "--batch-size", "2", "--epochs", "3", "--eval-share", "0.2", "--eval-every", "1000"]
    with start(place, *order, *band, *more) as run:
        _, stderr = run.communicate(timeout=280)
    assert run.returncode == 0, stderr
    graph = read_graph(place, "a")
    steps = [entry for entry in graph if "loss" in entry]
    switch = next(b["current_steps"] for b in steps if b["phase"] == "sequential") - 1
    assert 1 < switch < len(steps)
    assert [e["current_steps"] for e in graph if "eval_loss" in e] == [0, switch, len(steps)]
    assert sum(step["examples"] for step in steps) == 3 * 32
    assert "Phases of hybrid batching:" in stderr


@pytest.fixture
def evaluation():
    """Evaluation loop with batches of one, and seven examples of two groups."""
    seven_rows = random_examples(12, 5, 9, 7, 11, 6, 8)
    return (
        EvalLoop(
            make_model("llama"), ModelCapabilities(FullLogitsLoss(), packed=False), BatchLimit(1), lambda: False
        ),
        seven_rows,
        [0, 1, 0, 1, 0, 1, 0],
    )


def test_the_shares_of_two_processes_add_up_to_the_whole(evaluation, monkeypatch):
    eval_loop, seven_rows, groups = evaluation
    with torch.no_grad():
        whole, shares = eval_loop.sums(seven_rows, groups, 2), []
        for rank in (0, 1):
            monkeypatch.setattr(distributed, "split_over_ranks", lambda work, rank=rank: work[rank::2])
            shares.append(eval_loop.sums(seven_rows, groups, 2))
    for total, one, two in zip(whole, *shares, strict=True):
        assert np.allclose(total, one + two, rtol=1e-9)
    lengths = [share.tokens.sum() for share in shares]
    assert 0.4 <= lengths[0] / sum(lengths) <= 0.6


def test_a_failure_in_one_process_reaches_all(evaluation, monkeypatch):
    eval_loop, seven_rows, groups = evaluation
    monkeypatch.setattr(distributed, "any_rank", lambda stopped, failed: (True, failed))
    with torch.no_grad():
        assert eval_loop.sums(seven_rows, groups, 2) is None
    monkeypatch.setattr(distributed, "any_rank", lambda stopped, failed: (stopped, True))
    with torch.no_grad(), pytest.raises(RuntimeError, match="another process reported an error"):
        eval_loop.sums(seven_rows, groups, 2)
    flags = []
    monkeypatch.setattr(distributed, "any_rank", lambda *wishes: flags.append(wishes) or wishes)
    monkeypatch.setattr(eval_loop, "_add", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        eval_loop.sums(seven_rows, groups, 2)
    assert flags == [(False, True)]


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_stop_reaches_all_processes(place):
    place.write("rows.jsonl", rows(40))
    with start(place, "--name", "two", "--epochs", "1000") as run:
        stderr = ""
        while "step 1" not in stderr and run.poll() is None:
            stderr += run.stderr.readline()
        run.send_signal(signal.SIGINT)
        started = time.monotonic()
        stderr += run.communicate(timeout=120)[1]
    assert time.monotonic() - started < 110
    assert "Stopping after this step and saving a checkpoint" in stderr
    assert "stopped at step" in stderr
    assert list(place.lora("two").glob("checkpoint-*"))


def test_the_arithmetic_of_several_processes():
    plan = StepPlan(40, 4, 1, 1, processes=2)
    assert (plan.examples_per_step, plan.batches, plan.steps_per_epoch, plan.repeated_examples) == (8, 5, 5, 0)
    uneven = StepPlan(41, 4, 2, 1, processes=2)
    assert (uneven.examples_per_step, uneven.batches, uneven.steps_per_epoch, uneven.repeated_examples) == (
        16,
        6,
        3,
        7,
    )
    assert StepPlan(41, 4, 2, 1).repeated_examples == 0


def test_the_environment_of_a_launcher_is_read(monkeypatch):
    assert (dist_env.world_size(), dist_env.rank(), dist_env.local_rank()) == (1, 0, 0)
    for name, value in (("WORLD_SIZE", "4"), ("RANK", "3"), ("LOCAL_RANK", "1")):
        monkeypatch.setenv(name, value)
    assert (dist_env.world_size(), dist_env.rank(), dist_env.local_rank()) == (4, 3, 1)
    assert not dist_env.is_main_process()


@pytest.mark.parametrize(
    ("system", "count", "spoken"), [("win32", 2, "gloo"), ("win32", 1, None), ("linux", 2, None)]
)
def test_on_windows_the_backend_is_gloo(monkeypatch, system, count, spoken):
    """PyTorch for Windows is built without NCCL, which accelerate would choose for GPUs."""
    monkeypatch.setenv("WORLD_SIZE", str(count))
    monkeypatch.setattr(distributed, "sys", SimpleNamespace(platform=system))
    assert distributed.ddp_backend() == spoken


def test_only_rank_0_gets_the_run_folder(monkeypatch, tmp_path):
    folder = RunFolder(tmp_path / "a", tmp_path)
    with distributed.process_run_folder(folder) as own:
        assert own is folder
    monkeypatch.setenv("RANK", "1")
    with distributed.process_run_folder(folder) as own:
        assert tmp_path not in own.path.parents
        own.path.mkdir()
    assert not own.path.exists()


def test_a_single_process_has_nothing_to_synchronize():
    control = RunControl()
    assert distributed.sync_control(control, 5.0) == (frozenset(), 5.0)
    control.ask(Request.STOP)
    assert distributed.sync_control(control, 5.0) == ({Request.STOP}, 5.0)
    assert distributed.any_rank(True, False) == (True, False)
    assert distributed.split_over_ranks([1, 2, 3]) == [1, 2, 3]
    sums = np.ones(2)
    distributed.sum_over_ranks([sums])
    assert sums.tolist() == [1.0, 1.0]
    distributed.shutdown()
