"""Long runs and many runs in one process: memory, threads, files and tensors stay as they were early on."""

from __future__ import annotations

import gc
import threading

import psutil
import pytest
import torch
from training_pro.core.jobs import Session, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.hardness.conftest import MEASURED, resident_megabytes
from training_pro.tests.tiny import watched_job

LONG_RUN = {
    "cutoff": 16, "epochs": 1_000, "batch_size": 1, "accumulation": 1, "learning_rate": 1e-5,
    "keep_checkpoints": 2,
    "eval_share": 0.1, "sample_prompts": ["The keeper"], "sample_length": 4, "save_each_epoch": False,
}  # fmt: skip
GROWTH_LIMIT = 1.05
SMALL_GROWTH_MEGABYTES = 25  # what the allocator may take at any time


def handles() -> int:
    process = psutil.Process()
    return int(process.num_handles() if hasattr(process, "num_handles") else process.num_fds())


def used() -> dict[str, float]:
    """Memory in MB, and the numbers of threads, open files or handles, tensors and modules."""
    gc.collect()
    things = gc.get_objects()
    return {
        "MB": resident_megabytes(),
        "threads": threading.active_count(),
        "open files": handles(),
        "tensors": sum(isinstance(thing, torch.Tensor) for thing in things),
        "modules": sum(isinstance(thing, torch.nn.Module) for thing in things),
    }


def grew(early: dict[str, float], late: dict[str, float]) -> list[str]:
    """What grew from an early moment to a late one."""
    most = max(early["MB"] * GROWTH_LIMIT, early["MB"] + SMALL_GROWTH_MEGABYTES) if MEASURED else float("inf")
    limits = early | {"MB": most}
    return [f"{late[name]:.0f} {name} after {early[name]:.0f}" for name in early if late[name] > limits[name]]


@pytest.mark.long
@pytest.mark.parametrize(("steps", "early"), [(400, 200), pytest.param(50_000, 1_000, marks=pytest.mark.hours)])
def test_a_long_run_keeps_its_memory(place, proof, record_property, steps, early):
    uses = {}
    every = max(steps // 20, 50)

    def watch(job, event):
        if isinstance(event, Step) and event.step in (early, steps - 1):
            uses[event.step] = used()

    record_property("what", f"A run of {steps:,} steps with checkpoints, evaluations and samples")
    with proof.case(f"{steps} steps"):
        more = {"max_steps": steps, "save_every": every, "eval_every": every, "sample_every": str(every)}
        assert place.train(job=watched_job(watch), **LONG_RUN, **more).outcome == "finished"
        assert grew(uses[early], uses[steps - 1]) == []
        record_property(
            "figures",
            f"{uses[early]['MB']:.0f} MB after {early:,} steps, {uses[steps - 1]['MB']:.0f} MB at the end",
        )


@pytest.mark.long
@pytest.mark.parametrize(("runs", "early"), [(6, 3), pytest.param(200, 20, marks=pytest.mark.hours)])
def test_many_runs_in_one_process_keep_its_memory(place, proof, record_property, runs, early):
    host, session, uses = place.host(), Session(), []
    record_property("what", f"{runs} runs in one process, one after another")
    for number in range(runs):
        with proof.case(f"run {number}"):
            settings = place.settings(name=f"run-{number % 2}", if_exists="replace", max_steps=2)
            job = session.start(
                "training", "a run", host, lambda job, s=settings: PeftEngine().train(s, host, job)
            )
            job.log.wait_closed()
            assert job.end.outcome == "finished", job.end.text
            for thread in [thread for thread in threading.enumerate() if thread.name == "a run"]:
                thread.join()
        uses.append(used())
    with proof.case("memory, threads, open files, tensors and modules"):
        assert grew(uses[early - 1], uses[-1]) == []
    first, last = uses[early - 1]["MB"], uses[-1]["MB"]
    record_property("figures", f"{first:.0f} MB after {early} runs, {last:.0f} MB at the end")
