"""Many runs in one process leave nothing in memory, and no threads."""

from __future__ import annotations

import gc
import threading

import psutil
import pytest
import torch
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine

QUICK = {"epochs": 1, "if_exists": "replace", "sample_every": "never"}
MEGABYTE = 1_000_000


def in_use():
    """Return the numbers of living threads, tensors and modules, and the memory of the process in MB."""
    gc.collect()
    things = gc.get_objects()
    return (
        threading.active_count(),
        sum(isinstance(thing, torch.Tensor) for thing in things),
        sum(isinstance(thing, torch.nn.Module) for thing in things),
        psutil.Process().memory_info().rss / MEGABYTE,
    )


def after_runs(place, count):
    """Run `count` times on one model in a session; return what is in use after each run."""
    host, session, uses = place.host(), Session(), []
    for number in range(count):
        settings = place.settings(name=f"run-{number % 2}", **QUICK)
        job = session.start("training", "a run", host, lambda job, s=settings: PeftEngine().train(s, host, job))
        job.log.wait_closed()
        assert job.end.outcome == "finished", job.end.text
        for thread in [t for t in threading.enumerate() if t.name == "a run"]:
            thread.join()
        uses.append(in_use())
    return uses


@pytest.mark.parametrize("count", [6, pytest.param(30, marks=pytest.mark.long)])
def test_memory_and_threads_are_as_after_the_third(place, count, record_property):
    uses = after_runs(place, count)
    third, last = uses[2], uses[-1]
    record_property("in use", f"after the third run {third}, after number {count} {last}")
    assert last[:3] == third[:3]
    assert last[3] - third[3] < 25
