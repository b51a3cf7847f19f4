"""Crashed runs: what was lost, and keeping or discarding them."""

from __future__ import annotations

import time

import pytest
from training_pro.core.jobs.events import Progress
from training_pro.records.folder import heartbeat, loras
from training_pro.records.folder.crashed_runs import cut_off_runs, keep, throw_away
from training_pro.records.folder.run_lock import in_progress
from training_pro.tests.tiny import tree, watched

RUN = {"epochs": 2, "save_every": 3, "save_each_epoch": False, "sample_every": "never"}


@pytest.fixture(autouse=True)
def each_step(monkeypatch):
    monkeypatch.setattr(heartbeat, "SECONDS", 0.0)


def crash_at(place, step, **more):
    def watch(job, event):
        if isinstance(event, Progress) and event.step == step:
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=watched(watch), **{**RUN, **more})


def test_it_is_found_with_what_was_lost(place):
    assert cut_off_runs(place.folders) == []
    crash_at(place, 6)
    (run,) = cut_off_runs(place.folders)
    assert (run.name, run.step, run.steps, run.safe_step, run.lost_steps) == ("a", 5, 8, 3, 2)
    assert abs(run.at - time.time()) < 60
    assert run.lost.startswith("2 steps are lost, about ")
    with in_progress("a", place.folders):
        assert cut_off_runs(place.folders) == []
    place.train(resume="newest", **RUN)
    assert cut_off_runs(place.folders) == []


def test_before_its_first_checkpoint_it_is_found_too(place):
    crash_at(place, 3)
    (run,) = cut_off_runs(place.folders)
    assert (run.step, run.safe_step, run.lost_steps) == (2, 0, 2)
    throw_away(run, place.folders)
    assert not place.lora().exists()


def test_when_kept_the_last_checkpoint_becomes_the_lora(place):
    crash_at(place, 6)
    (run,) = cut_off_runs(place.folders)
    keep(run, place.folders)
    assert place.weights() == (place.lora() / "checkpoint-3" / "adapter_model.safetensors").read_bytes()
    assert (loras.standing(place.lora()), cut_off_runs(place.folders)) == ("stopped", [])
    assert not (place.lora() / ".part").exists()
    assert place.train(resume="newest", **RUN).outcome == "finished"


def test_when_discarded_the_replaced_lora_is_restored(place):
    place.train(epochs=1, save_each_epoch=False, sample_every="never")
    before = tree(place.lora())
    crash_at(place, 6, if_exists="replace")
    (run,) = cut_off_runs(place.folders)
    throw_away(run, place.folders)
    assert tree(place.lora()) == before


def test_when_discarded_the_run_before_it_was_resumed_stays(place):
    place.train(job=watched(lambda job, e: job.control.stop() if isinstance(e, Progress) else None), **RUN)
    before = tree(place.lora())
    crash_at(place, 6, if_exists="continue")
    (run,) = cut_off_runs(place.folders)
    assert (run.step, run.safe_step) == (5, 3)
    throw_away(run, place.folders)
    assert {p: b for p, b in tree(place.lora()).items() if "graph" not in p} == {
        p: b for p, b in before.items() if "graph" not in p
    }
