"""Crashed runs: what was lost, and keeping or discarding them."""

from __future__ import annotations

import time

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Request, Step
from training_pro.records.folder import heartbeat, hold_run_lock, loras
from training_pro.records.folder.crashed_runs import discard_run, find_crashed_runs, keep_run
from training_pro.tests.tiny import read_tree, watched_job

RUN = {"epochs": 2, "save_every": 3, "save_each_epoch": False, "sample_every": "never"}


@pytest.fixture(autouse=True)
def each_step(monkeypatch):
    monkeypatch.setattr(heartbeat, "INTERVAL_SECONDS", 0.0)


def crash_at(place, step, **more):
    def watch(job, event):
        if isinstance(event, Step) and event.step == step:
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=watched_job(watch), **{**RUN, **more})


def test_it_is_found_with_what_was_lost(place):
    assert find_crashed_runs(place.folders) == []
    crash_at(place, 6)
    (run,) = find_crashed_runs(place.folders)
    assert (run.name, run.step, run.steps, run.safe_step, run.lost_steps) == ("a", 5, 8, 3, 2)
    assert abs(run.at - time.time()) < 60
    assert run.lost_work.startswith("2 steps are lost, about ")
    with hold_run_lock("a", place.folders):
        assert find_crashed_runs(place.folders) == []
    place.train(resume="newest", **RUN)
    assert find_crashed_runs(place.folders) == []


def test_before_its_first_checkpoint_it_is_found_too(place):
    crash_at(place, 3)
    (run,) = find_crashed_runs(place.folders)
    assert (run.step, run.safe_step, run.lost_steps) == (2, 0, 2)
    discard_run(run, place.folders)
    assert not place.lora().exists()


def test_when_kept_the_last_checkpoint_becomes_the_lora(place):
    crash_at(place, 6)
    (run,) = find_crashed_runs(place.folders)
    keep_run(run, place.folders)
    assert place.weights() == (place.lora() / "checkpoint-3" / "adapter_model.safetensors").read_bytes()
    assert (loras.run_status(place.lora()), find_crashed_runs(place.folders)) == ("stopped", [])
    assert not (place.lora() / ".part").exists()
    assert place.train(resume="newest", **RUN).outcome == "finished"


def test_when_discarded_the_replaced_lora_is_restored(place):
    place.train(epochs=1, save_each_epoch=False, sample_every="never")
    before = read_tree(place.lora())
    crash_at(place, 6, if_exists="replace")
    (run,) = find_crashed_runs(place.folders)
    discard_run(run, place.folders)
    assert read_tree(place.lora()) == before


def test_when_discarded_the_run_before_it_was_resumed_stays(place):
    place.train(
        job=watched_job(lambda job, e: job.control.ask(Request.STOP) if isinstance(e, Step) else None), **RUN
    )
    before = read_tree(place.lora())
    crash_at(place, 6, if_exists="continue")
    (run,) = find_crashed_runs(place.folders)
    assert (run.step, run.safe_step) == (5, 3)
    discard_run(run, place.folders)
    assert {p: b for p, b in read_tree(place.lora()).items() if "graph" not in p} == {
        p: b for p, b in before.items() if "graph" not in p
    }


def test_discarding_twice_deletes_nothing_of_the_run_before_it_was_resumed(place):
    """A second crash after a second resume: the first discard restores the first crash."""
    place.train(
        job=watched_job(lambda job, e: job.control.ask(Request.STOP) if isinstance(e, Step) else None), **RUN
    )
    crash_at(place, 6, if_exists="continue")
    crash_at(place, 8, if_exists="continue")
    (run,) = find_crashed_runs(place.folders)
    for steps in ([1, 3], [1]):
        (run,) = find_crashed_runs(place.folders)
        discard_run(run, place.folders)
        assert [checkpoint.step for checkpoint in loras.resumable_checkpoints(place.lora())] == steps


def test_a_run_whose_journal_can_not_be_read_is_not_discarded(place):
    crash_at(place, 6)
    (place.lora() / ".journal.json").write_bytes(bytes(100))
    (run,) = find_crashed_runs(place.folders)
    with pytest.raises(SavingError, match="You can delete the LoRA instead"):
        discard_run(run, place.folders)
    assert (place.lora() / "checkpoint-3").is_dir()
