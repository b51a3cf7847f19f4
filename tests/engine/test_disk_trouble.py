"""A full disk, a deleted or read-only folder, a file held open: the run continues, and its LoRA is saved."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path

import pytest
from training_pro import core
from training_pro.core.jobs import Advice, CheckpointSaved, Job, Request, Step
from training_pro.engine.saving import safe_save
from training_pro.records.folder import RunFolder, inventory, loras
from training_pro.settings import files
from training_pro.tests.engine import watching
from training_pro.tests.engine.watching import asking, at, events_of, extending, stopping_at, texts
from training_pro.tests.tiny import watched_job

TWO = {"epochs": 2, "save_each_epoch": False}
SAMPLING = {"sample_prompts": ["She said"], "sample_every": "epoch"}


@pytest.fixture
def quick(monkeypatch):
    """Short pauses between tries."""
    monkeypatch.setattr(safe_save, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(safe_save, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(core.files, "RETRY_PAUSES_SECONDS", (0.01, 0.01))


def failing(place, step, actions):
    """Return a job that does each action after its step, and whose checkpoint after `step` can't be written."""
    part = place.lora() / ".part"

    def watch(job, event):
        if isinstance(event, Step) and event.step in actions:
            actions[event.step](job)
        if isinstance(event, Step) and event.step == step:
            shutil.rmtree(part, ignore_errors=True)
            part.write_text("a file where the folder should be")
        elif isinstance(event, Advice) and "could not be saved" in event.text:
            part.unlink()

    return watched_job(watch)


def saved(job):
    return [event.step for event in events_of(job, CheckpointSaved)]


def unsaved(job):
    return [text for text in texts(job, Advice) if text.startswith("The checkpoint at step ")]


@pytest.mark.long
@pytest.mark.parametrize(
    ("room", "checkpoints", "rescued"),
    [(9.0, [2, 4, 6, 8], False), (2.0, [], False), (0.5, [], True)],
    ids=["older checkpoints are slimmed", "only the LoRA fits", "nothing fits"],
)
def test_a_disk_that_gets_full_at_the_first_step(place, disk, lora, quick, room, checkpoints, rescued):
    """Room is in LoRAs; a full checkpoint takes about three."""
    leave = int(room * 16 * (lora / "adapter_model.safetensors").stat().st_size)
    fill = at({1: lambda job: (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - leave))})
    end = place.train(job=fill, rank=64, save_every=2, **TWO)
    elsewhere = place.folders.user_data / "rescued" / "a"
    assert (end.outcome, saved(fill)) == ("finished", checkpoints)
    assert end.folder == (elsewhere if rescued else place.lora())
    assert loras.has_lora(end.folder) and loras.run_status(end.folder) == "finished"
    assert loras.has_lora(place.lora()) is not rescued
    if checkpoints:
        assert [c.step for c in loras.checkpoints(place.lora())][-1] == 8
        assert loras.has_lora(place.lora() / "checkpoint-2") and not unsaved(fill)
        return
    assert unsaved(fill)[0].startswith("The checkpoint at step 2 could not be saved: the disk is full (")
    assert unsaved(fill)[0].endswith("The run continues. There is no checkpoint yet.")
    message = [text for text in texts(fill, Advice) if text.endswith(f"saved in {elsewhere} instead.")]
    assert len(message) == rescued
    assert not (place.lora() / ".part").exists()


def test_a_folder_that_becomes_read_only_costs_the_checkpoints_and_not_the_lora(place, disk, quick):
    job = at({5: lambda job: subprocess.run(["mount", "-o", "remount,ro", disk], check=True)})
    end = place.train(job=job, save_every=2, **TWO)
    assert (end.outcome, end.folder) == ("finished", place.folders.user_data / "rescued" / "a")
    assert loras.has_lora(end.folder) and saved(job) == [2, 4]
    assert "step 6 could not be saved: the folder is read-only. The run continues. The last" in unsaved(job)[0]


def test_a_checkpoint_that_cannot_be_written_costs_no_other(place):
    """The disk has room, so no earlier one is slimmed; the last one may also be a backup."""
    job = failing(place, 5, {})
    assert place.train(job=job, save_every=2, **TWO).outcome == "finished"
    assert saved(job) == [2, 4, 8]
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [2, 4, 8]
    job = failing(place, 3, {3: asking(Request.STOP)})
    assert place.train(name="a", job=job, if_exists="replace", backup_minutes=1e-6, **TWO).outcome == "stopped"
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [2]


@pytest.mark.parametrize("request_", [asking(Request.FREE_MEMORY), extending(2)], ids=["pause", "more epochs"])
def test_a_pause_or_more_epochs_that_cannot_be_saved_for_are_canceled(place, request_):
    job = failing(place, 3, {3: request_})
    assert place.train(job=job, **TWO).text.startswith("'a' finished at step 8 of 8")
    (message,) = unsaved(job)
    assert "The run continues, but the pause or the added epochs that you requested are canceled." in message
    assert job.control.pending == frozenset()
    assert watching.read(place.lora() / "training_parameters.json")["epochs"] == 2


@pytest.mark.long
def test_a_deleted_folder_is_created_again_and_can_go_on_when_the_run_is_cut_off(place):
    place.train(name="whole", **TWO)
    job = at({3: lambda job: shutil.rmtree(place.lora()), 7: watching.break_down})
    with pytest.raises(OSError, match="the power went"):
        place.train(job=job, save_every=2, **TWO)
    (run,) = inventory.find_crashed_runs(place.folders)
    asked = files.load_settings(run.folder / "training_parameters.json", place.folders.datasets).values
    assert place.train(resume="newest", **asked).text.startswith("'a' finished at step 8 of 8")
    assert place.weights() == place.weights("whole")


def test_a_lora_that_fits_nowhere_waits_for_room(place, monkeypatch, quick):
    tried, move = [], RunFolder.move_into_place

    def full(folder, written):
        tried.append(folder.path)
        if len(tried) < 14:
            raise OSError(28, "No space left on device")
        return move(folder, written)

    monkeypatch.setattr(RunFolder, "move_into_place", full)
    job = Job("training", "a test")
    assert place.train(job=job, max_steps=1).folder == place.lora() and loras.has_lora(place.lora())
    assert len([text for text in texts(job, Advice) if "finished but could not be saved anywhere: " in text]) == 2


@pytest.fixture
def held(monkeypatch, quick):
    """Names of files that another program holds, with how many times replacing them fails, as on Windows."""
    names, replace = {}, Path.replace

    def replace_or_fail(path, target):
        if names.get(Path(target).name, 0) and Path(target).parent.name == "a":
            names[Path(target).name] -= 1
            raise PermissionError(13, "The process cannot access the file", str(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", replace_or_fail)
    return names


def test_files_that_are_released_in_time_are_replaced(place, held):
    held |= {"checkpoint-3": 2, "adapter_model.safetensors": 1}
    job = stopping_at(3)
    assert place.train(job=job, **TWO).folder == place.lora()
    assert (saved(job), held) == ([3], {"checkpoint-3": 0, "adapter_model.safetensors": 0})
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [3]


@pytest.mark.long
def test_for_a_file_that_stays_held_another_name_is_used(place, held):
    place.train(job=stopping_at(4), **TWO, **SAMPLING)
    before, held["adapter_model.safetensors"] = place.weights(), 1000
    job = Job("training", "a test")
    end = place.train(job=job, resume="newest", **TWO, **SAMPLING)
    assert (end.outcome, end.folder) == ("finished", place.lora("a-2"))
    assert place.weights() == before  # with its own adapter_config.json
    assert held["adapter_model.safetensors"] == 1000 - 3 * 3
    (message,) = [text for text in texts(job, Advice) if "instead" in text]
    assert "adapter_model.safetensors is read-only, or another program has it open" in message
    assert loras.run_status(place.lora("a-2")) == "finished"
    assert {"report.html", "samples.jsonl", "training_prompt.json"} <= {path.name for path in end.folder.iterdir()}
    assert (loras.run_status(place.lora()), inventory.find_crashed_runs(place.folders)) == ("stopped", [])
    because = watching.read(place.lora() / "training_log.json")["ended_because"]
    assert because == f"the LoRA was saved in {place.lora('a-2')} instead"
