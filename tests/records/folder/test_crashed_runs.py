"""Crashed runs: what was lost, and keeping or discarding them."""

import time

import pytest
from training_pro.core.jobs import Step
from training_pro.records.folder import hold_run_lock, inventory, loras, plan_upload, run_files
from training_pro.tests.tiny import read_tree, watched_job

RUN = {"epochs": 2, "save_every": 3, "save_each_epoch": False, "sample_every": "never"}


def crash_at(place, step, **more):
    """Train up to a crash, and return the run as it is found."""

    def watch(job, event):
        if isinstance(event, Step) and event.step == step:
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=watched_job(watch), **{**RUN, **more})
    (run,) = inventory.find_crashed_runs(place.folders)
    return run


@pytest.mark.long
def test_it_is_found_with_what_was_lost_and_when_kept_its_last_checkpoint_becomes_the_lora(place):
    assert inventory.find_crashed_runs(place.folders) == []
    run = crash_at(place, 6)
    assert (run.name, run.step, run.steps, run.safe_step, run.lost_steps) == ("a", 6, 8, 3, 3)
    assert run.at <= time.time() and run.lost_work.startswith("3 steps are lost, about ")
    with hold_run_lock("a", place.folders):
        assert inventory.find_crashed_runs(place.folders) == []
    inventory.keep_run(run, place.folders)
    # Which data it had is unknown, so its records are not uploaded.
    upload = plan_upload(run.folder, run.name, "me/a", also=[run_files.LOG])
    assert run_files.LOG not in [file.name for file in upload.files]
    assert place.weights() == (place.lora() / "checkpoint-3" / "adapter_model.safetensors").read_bytes()
    assert (loras.run_status(place.lora()), inventory.find_crashed_runs(place.folders)) == ("stopped", [])
    assert not (place.lora() / ".part").exists()
    assert place.train(resume="newest", **RUN).outcome == "finished"


@pytest.mark.long
def test_before_its_first_checkpoint_it_is_found_too_and_when_discarded_the_replaced_lora_is_restored(place):
    run = crash_at(place, 3)
    assert (run.step, run.safe_step, run.lost_steps) == (3, 0, 3)
    inventory.discard_run(run, place.folders)
    assert not place.lora().exists()
    place.train(epochs=1, save_each_epoch=False)
    before = read_tree(place.lora())
    inventory.discard_run(crash_at(place, 6, if_exists="replace"), place.folders)
    assert read_tree(place.lora()) == before
