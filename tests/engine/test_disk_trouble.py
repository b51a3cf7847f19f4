"""A full disk, a deleted or read-only folder, a file held open: the run continues, and its LoRA is saved."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.files import atomic_files
from training_pro.core.jobs import Advice, CheckpointSaved, Note, Request, Step
from training_pro.engine.saving import safe_save
from training_pro.engine.training import callback
from training_pro.records.folder import loras, run_folder
from training_pro.records.folder.crashed_runs import find_crashed_runs
from training_pro.settings import files
from training_pro.tests.tiny import read_tree, watched_job

TWO = {"epochs": 2, "save_each_epoch": False}
SAMPLING = {"sample_prompts": ["She said"], "sample_every": "epoch"}


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(safe_save, "PAUSE_SECONDS", 0.01)
    monkeypatch.setattr(safe_save, "RETRY_SECONDS", 0.05)
    monkeypatch.setattr(atomic_files, "RETRY_PAUSES_SECONDS", (0.01, 0.01))
    monkeypatch.setattr(atomic_files, "NEW_FOLDER_PAUSES_SECONDS", (0.01, 0.01))


@pytest.fixture
def disk(place):
    """The LoRA folder on its own small disk."""
    folder = place.folders.loras
    folder.mkdir(parents=True)
    if subprocess.run(["mount", "-t", "tmpfs", "-o", "size=64m", "tmpfs", folder], check=False).returncode:
        pytest.skip("no disk can be mounted here")
    yield folder
    subprocess.run(["umount", "-l", folder], check=True)


def filling(disk, leave):
    """Return a job that fills the disk at its first step, except for `leave` bytes."""

    def fill(job):
        (disk / "ballast").write_bytes(bytes(shutil.disk_usage(disk).free - int(leave)))

    return at(1, fill)


def at(step, do):
    return watched_job(lambda job, event: do(job) if isinstance(event, Step) and event.step == step else None)


def advice(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Advice)]


def saved(job):
    return [event.step for event in job.log.since(0) if isinstance(event, CheckpointSaved)]


def sizes(place, **more):
    """Return the bytes of a LoRA and of a full checkpoint with these settings."""
    place.train(name="sizes", **{**TWO, **more, "max_steps": 1, "save_every": 1})
    folder = place.lora("sizes")
    byte_counts = (
        (folder / "adapter_model.safetensors").stat().st_size,
        loras.size_on_disk(folder / "checkpoint-1"),
    )
    shutil.rmtree(folder)
    return byte_counts


def test_on_a_full_disk_older_checkpoints_are_slimmed(place, disk):
    lora, full = sizes(place, rank=64)
    job = filling(disk, 2.8 * full)
    end = place.train(job=job, rank=64, save_every=2, **TWO)
    assert end.outcome == "finished"
    assert saved(job) == [2, 4, 6, 8]
    assert [c.step for c in loras.checkpoints(place.lora())][-1] == 8
    assert loras.has_lora(place.lora() / "checkpoint-2")
    assert loras.run_status(place.lora()) == "finished"
    assert lora < full


def test_a_checkpoint_that_does_not_fit_is_logged_and_the_run_continues(place, disk):
    lora, full = sizes(place, rank=64)
    job = filling(disk, (lora + full) / 2)  # the LoRA fits, but not a full checkpoint
    end = place.train(job=job, rank=64, save_every=4, **TWO)
    assert (end.outcome, saved(job)) == ("finished", [])
    messages = [text for text in advice(job) if text.startswith("The checkpoint at step ")]
    assert len(messages) == 2
    assert messages[0].startswith("The checkpoint at step 4 could not be saved: the disk is full (")
    assert messages[0].endswith("The run continues. There is no checkpoint yet.")
    assert (loras.has_lora(place.lora()), loras.run_status(place.lora())) == (True, "finished")
    assert not (place.lora() / ".part").exists()


def test_a_lora_that_does_not_fit_is_saved_elsewhere(place, disk):
    place.train(name="whole", rank=64, **TWO)
    whole = place.weights("whole")
    job = filling(disk, len(whole) / 2)
    end = place.train(job=job, rank=64, **TWO)
    rescued = place.folders.user_data / "rescued" / "a"
    assert (end.outcome, end.folder) == ("finished", rescued)
    assert (rescued / "adapter_model.safetensors").read_bytes() == whole
    (message,) = [text for text in advice(job) if "instead" in text]
    assert message.startswith(f"{place.lora()} could not be written: the disk is full (")
    assert message.endswith(f"The LoRA was saved in {rescued} instead.")
    assert {p.name for p in rescued.iterdir()} >= {"training_log.json", "training_parameters.json"}
    assert not loras.has_lora(place.lora())


def test_a_lora_that_fits_nowhere_waits_for_room(place, monkeypatch):
    tried = []

    def full(folder, written):
        tried.append(folder.path)
        if len(tried) < 14:
            raise OSError(28, "No space left on device")
        return keep(folder, written)

    keep = safe_save.RunFolder.move_into_place
    monkeypatch.setattr(safe_save.RunFolder, "move_into_place", full)
    job = watched_job(lambda job, event: None)
    end = place.train(job=job, **TWO)
    assert (end.outcome, end.folder) == ("finished", place.lora())
    waits = [
        text for text in advice(job) if text.startswith("The LoRA is finished but could not be saved anywhere: ")
    ]
    assert len(waits) == 2
    assert loras.has_lora(place.lora())


def fail_to_save(job, monkeypatch, *requests):
    """Let the checkpoint for these requests fail, and no later one."""
    finalize = callback.finalize_checkpoint

    def fail(folder, reason, state):
        monkeypatch.setattr(callback, "finalize_checkpoint", finalize)
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(callback, "finalize_checkpoint", fail)
    for request in requests:
        job.control.ask(request)


def test_after_added_epochs_the_last_checkpoint_is_the_one_in_between(place, monkeypatch):
    def watch(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.extend(1)
        if isinstance(event, Step) and event.step == 3:
            fail_to_save(job, monkeypatch, Request.CHECKPOINT)

    job = watched_job(watch)
    place.train(job=job, **TWO)
    (message,) = [text for text in advice(job) if "could not be saved" in text]
    assert message.endswith("The run continues. The last checkpoint is checkpoint-2.")


def test_a_pause_that_can_not_free_the_memory_is_canceled(place, monkeypatch):
    job = at(2, lambda job: fail_to_save(job, monkeypatch, Request.FREE_MEMORY))
    assert place.train(job=job, **TWO).outcome == "finished"
    (message,) = [text for text in advice(job) if "could not be saved" in text]
    assert "The run continues, but the pause or the added epochs that you requested are canceled." in message
    assert job.control.pending == frozenset()


def test_a_deleted_folder_is_created_again(place):
    place.train(name="whole", **TWO)
    end = place.train(job=at(5, lambda job: shutil.rmtree(place.folders.loras / "a")), save_every=4, **TWO)
    assert end.outcome == "finished"
    assert place.weights() == place.weights("whole")
    assert [c.step for c in loras.checkpoints(place.lora())] == [8]
    assert (place.lora() / "training_parameters.json").is_file()


def test_a_folder_that_becomes_read_only_costs_the_checkpoints_and_not_the_lora(place, disk):
    job = at(5, lambda job: subprocess.run(["mount", "-o", "remount,ro", disk], check=True))
    end = place.train(job=job, save_every=2, **TWO)
    assert (end.outcome, end.folder) == ("finished", place.folders.user_data / "rescued" / "a")
    assert loras.has_lora(end.folder)
    assert saved(job) == [2, 4]
    messages = [text for text in advice(job) if "read-only" in text]
    assert messages[0] == (
        "The checkpoint at step 6 could not be saved: the folder is read-only. The run continues. "
        "The last checkpoint is checkpoint-4."
    )


def test_a_file_held_open_is_retried_and_then_another_name_is_used(place, monkeypatch):
    """On Windows a loaded safetensors file cannot be replaced."""
    place.train(job=at(4, lambda job: job.control.ask(Request.STOP)), **TWO, **SAMPLING)
    before = place.weights()
    replace, tries = Path.replace, []

    def held(path, target):
        if Path(target) == place.lora() / "adapter_model.safetensors":
            tries.append(target)
            raise PermissionError(13, "The process cannot access the file", str(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", held)
    job = watched_job(lambda job, event: None)
    end = place.train(job=job, resume="newest", **TWO, **SAMPLING)
    assert len(tries) == 3 * 3
    assert (end.outcome, end.folder) == ("finished", place.lora("a-2"))
    assert place.weights() == before  # with its own adapter_config.json
    (message,) = [text for text in advice(job) if "instead" in text]
    assert "adapter_model.safetensors is read-only, or another program has it open" in message
    assert loras.run_status(place.lora("a-2")) == "finished"
    for name in ("report.html", "samples.jsonl", "training_prompt.json", "train_dataset_sample.json"):
        assert (place.lora("a-2") / name).is_file(), name
    assert (loras.run_status(place.lora()), find_crashed_runs(place.folders)) == ("stopped", [])
    because = json.loads((place.lora() / "training_log.json").read_text())["ended_because"]
    assert because == f"the LoRA was saved in {place.lora('a-2')} instead"


@pytest.mark.parametrize(
    "said", ["No space left on device (os error 28)", "Der Datenträger ist voll (os error 112)"]
)
def test_a_whole_model_handles_a_full_disk_like_a_lora(place, monkeypatch, said):
    """safetensors raises its own error class, and on Windows the message is localized."""
    from safetensors import SafetensorError
    from transformers import PreTrainedModel

    save, tries = PreTrainedModel.save_pretrained, []

    def full(*args, **more):
        tries.append(args)
        if len(tries) <= 3:
            raise SafetensorError(f"I/O error: {said}")
        return save(*args, **more)

    monkeypatch.setattr(PreTrainedModel, "save_pretrained", full)
    job = watched_job(lambda job, event: None)
    end = place.train(job=job, method="full", learning_rate=1e-5, save_every=4, **TWO)
    assert (end.outcome, saved(job)) == ("finished", [8])
    (advice_text,) = [
        text for text in advice(job) if text.startswith("The checkpoint at step 4 could not be saved")
    ]
    assert "the disk is full" in advice_text
    assert loras.has_weights(end.folder)


def test_a_file_that_is_released_in_time_is_replaced(place, monkeypatch):
    place.train(name="whole", **TWO)
    replace, tries = Path.replace, []

    def held(path, target):
        if Path(target) == place.lora() / "adapter_model.safetensors" and not tries:
            tries.append(target)
            raise PermissionError(13, "The process cannot access the file", str(target))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", held)
    assert place.train(**TWO).folder == place.lora()
    assert place.weights() == place.weights("whole")


def test_a_file_held_for_a_moment_costs_no_checkpoint(place, monkeypatch):
    """As by a virus scanner: the disk has room, so no checkpoint is slimmed."""
    from transformers import Trainer

    keep, save, tries = safe_save.RunFolder.move_into_place, Trainer._save_checkpoint, []

    def held(name, does):
        def try_it(*args):
            tries.append(name)
            if name in tries[:-1]:
                return does(*args)
            raise PermissionError(13, "The process cannot access the file", name)

        return try_it

    monkeypatch.setattr(safe_save.RunFolder, "move_into_place", held("the LoRA", keep))
    job = at(7, lambda job: monkeypatch.setattr(Trainer, "_save_checkpoint", held("the last checkpoint", save)))
    end = place.train(job=job, save_every=2, **TWO)
    assert tries == ["the last checkpoint"] * 2 + ["the LoRA"] * 2
    assert (end.outcome, saved(job)) == ("finished", [2, 4, 6, 8])
    assert [c.step for c in loras.checkpoints(place.lora())] == [4, 6, 8]


def test_a_record_that_cannot_be_written_costs_only_itself(place, monkeypatch):
    from training_pro.records.report import curve_png

    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(curve_png, "draw_graph", fails)
    job = watched_job(lambda job, event: None)
    assert place.train(job=job, **TWO).outcome == "finished"
    assert [
        e.text
        for e in job.log.since(0)
        if isinstance(e, Note) and e.text.startswith("A file in the LoRA's folder")
    ]
    assert loras.run_status(place.lora()) == "finished"


def test_a_checkpoint_whose_name_is_held_for_a_moment_is_there_after_a_stop(place, monkeypatch):
    replace, tries = Path.replace, []

    def held(path, target):
        if Path(target).name == "checkpoint-3" and len(tries) < 2:
            tries.append(target)
            raise PermissionError(13, "Access is denied", str(path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", held)
    job = at(3, lambda job: job.control.ask(Request.STOP))
    assert place.train(job=job, **TWO).outcome == "stopped"
    assert (len(tries), saved(job)) == (2, [3])
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [3]


def test_if_the_last_checkpoint_cannot_be_renamed_a_backup_remains(place, monkeypatch):
    replace = Path.replace

    def held(path, target):
        if Path(target) == place.lora() / "checkpoint-3":
            raise PermissionError(13, "Access is denied", str(path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", held)
    job = at(3, lambda job: job.control.ask(Request.STOP))
    assert place.train(job=job, backup_minutes=1e-6, **TWO).outcome == "stopped"
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [2]


def test_a_sample_of_the_data_that_cannot_be_written_costs_only_itself(place):
    place.train(**TWO)
    before = place.weights()
    place.folders.logs.mkdir(exist_ok=True)
    shutil.rmtree(place.folders.logs)
    place.folders.logs.write_text("a file where the folder should be")
    job = watched_job(lambda job, event: None)
    assert place.train(job=job, if_exists="replace", **TWO).outcome == "finished"
    assert [
        e.text
        for e in job.log.since(0)
        if isinstance(e, Note) and e.text.startswith("A file in the LoRA's folder")
    ]
    (backup,) = place.lora().glob("Backup-*")
    assert (backup / "adapter_model.safetensors").read_bytes() == before
    assert (place.lora() / "train_dataset_sample.json").is_file()


@pytest.mark.parametrize("resume", ["", "checkpoint-2"])
def test_if_the_folder_cannot_be_opened_nothing_is_changed(place, monkeypatch, resume):
    place.train(job=at(4, lambda job: job.control.ask(Request.STOP)), save_every=2, **TWO)
    before = read_tree(place.lora())

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(run_folder.files, "as_file", full)
    refusal = pytest.raises(
        SavingError, match=r"Can't write to .*a: the disk is full \(.*\)\. Fix the problem, or choose"
    )
    with refusal:
        place.train(resume=resume, if_exists="ask" if resume else "replace", save_every=2, **TWO)
    assert read_tree(place.lora()) == before


def test_more_epochs_that_cannot_be_saved_for_do_not_cost_the_run(place, monkeypatch):
    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(callback, "finalize_checkpoint", fails)
    job = at(3, lambda job: job.control.extend(2))
    end = place.train(job=job, **TWO)
    assert end.text.startswith("'a' finished at step 8 of 8")
    assert json.loads((place.lora() / "training_parameters.json").read_text())["epochs"] == 2
    assert any(
        "The run continues, but the pause or the added epochs that you requested are canceled." in text
        for text in advice(job)
    )


def test_more_epochs_that_cannot_be_saved_for_do_not_outlast_a_rule(place, monkeypatch):
    def fails(*_, **__):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(callback, "finalize_checkpoint", fails)
    end = place.train(job=at(4, lambda job: job.control.extend(2)), stop_at_epoch=1, **TWO)
    assert end.text.startswith("'a' finished at step 4 of 8 because epoch 1 is done")


def test_a_run_whose_folder_was_gone_can_go_on_when_it_is_cut_off(place):
    def lose_and_break_down(job, event):
        if isinstance(event, Step) and event.step == 2:
            shutil.rmtree(place.lora())
        if isinstance(event, Step) and event.step == 6:
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=watched_job(lose_and_break_down), **{**TWO, "save_each_epoch": True})
    (run,) = find_crashed_runs(place.folders)
    asked = files.load_settings(run.folder / "training_parameters.json", place.folders.datasets).values
    assert place.train(resume="newest", **asked).text.startswith("'a' finished at step 8 of 8")
