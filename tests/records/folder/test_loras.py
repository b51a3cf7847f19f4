"""LoRAs and checkpoints on disk: lists, status of their runs, and free names."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.folder import RunFolder, loras
from training_pro.records.folder.loras import (
    Checkpoint,
    FinishedSteps,
    checkpoints,
    describe_folder,
    finished_steps,
    free_name,
    has_lora,
    list_loadable,
    list_loras,
    resumable_checkpoints,
    run_status,
    size_on_disk,
    slim_checkpoint,
)
from training_pro.tests.records import on_disk
from training_pro.tests.tiny import read_tree


def write_lora(folder, file="adapter_model.safetensors"):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / file).write_bytes(b"weights")
    return folder


def write_log(folder, **log):
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "training_log.json").write_text(json.dumps(log), encoding="utf-8")
    return folder


def write_checkpoint(folder, name, *, whole=True):
    (folder / name).mkdir(parents=True)
    if whole:
        (folder / name / "run_state.json").write_text("{}", encoding="utf-8")
    return folder


def test_only_loras_that_can_be_loaded_are_listed(tmp_path):
    for name in ("story 10", "story 2", "old"):
        write_lora(tmp_path / name, "adapter_model.bin" if name == "old" else "adapter_model.safetensors")
    write_lora(tmp_path / "hidden-np")
    write_checkpoint(tmp_path / "unfinished", "checkpoint-4")
    (tmp_path / "a file").write_text("")
    assert list_loras(tmp_path) == ["old", "story 2", "story 10"]
    assert list_loras(tmp_path / "not there") == []


def test_status_of_a_run(tmp_path):
    assert run_status(tmp_path / "not there") == "nothing"
    assert run_status(write_lora(tmp_path / "elsewhere")) == "made elsewhere"
    assert run_status(write_log(write_lora(tmp_path / "done"), ended="finished")) == "finished"
    assert run_status(write_log(write_lora(tmp_path / "halted"), ended="stopped")) == "stopped"
    assert run_status(write_checkpoint(tmp_path / "crashed", "checkpoint-4-user")) == "cut off"
    assert run_status(write_checkpoint(tmp_path / "half", "checkpoint-4", whole=False)) == "nothing"
    assert run_status(write_log(write_lora(tmp_path / "original"), loss=1.0)) == "made elsewhere"


def test_every_status_is_described(tmp_path):
    def model(name):
        (tmp_path / name).mkdir()
        (tmp_path / name / "model.safetensors").write_bytes(b"")
        return tmp_path / name

    assert describe_folder(tmp_path / "not there") == "a folder"
    assert (
        describe_folder(write_checkpoint(tmp_path / "crashed", "checkpoint-4"))
        == "a run that was interrupted by a crash"
    )
    assert describe_folder(write_lora(tmp_path / "elsewhere")) == "a LoRA made elsewhere"
    assert describe_folder(model("m")) == "a model made elsewhere"
    for end, words in (
        ("finished", "a finished {}"),
        ("stopped", "the {} of a run that was stopped"),
        ("failed", "the {} of a run that failed"),
    ):
        assert describe_folder(write_log(write_lora(tmp_path / end), ended=end)) == words.format("LoRA")
        assert describe_folder(write_log(model(f"m-{end}"), ended=end)) == words.format("model")


@pytest.mark.parametrize("text", ["", "{broken", "[1]", "null"])
def test_a_log_that_cannot_be_read_is_ignored(tmp_path, text):
    (write_lora(tmp_path / "a") / "training_log.json").write_text(text, encoding="utf-8")
    assert run_status(tmp_path / "a") == "made elsewhere"
    assert finished_steps(tmp_path / "a") is None


def test_the_steps_of_a_finished_run(tmp_path):
    assert finished_steps(write_log(tmp_path / "a", ended="finished", current_steps=12)) == FinishedSteps(12, 12)
    assert finished_steps(
        write_log(tmp_path / "d", ended="finished", current_steps=12, steps=20)
    ) == FinishedSteps(12, 20)
    assert finished_steps(write_log(tmp_path / "b", ended="stopped", current_steps=12)) is None
    assert finished_steps(tmp_path / "c") is None


def test_complete_checkpoints_oldest_first(tmp_path):
    names = ["checkpoint-10", "checkpoint-9-epoch-2", "checkpoint-9-best", "checkpoint-100-loss-1_80"]
    for name in names:
        write_checkpoint(tmp_path, name)
    write_checkpoint(tmp_path, "checkpoint-200", whole=False)
    for name in ("checkpoint-", "checkpoint-x", "Backup-2026-11-21", "backup"):
        write_checkpoint(tmp_path, name)
    assert checkpoints(tmp_path) == [
        Checkpoint(9, tmp_path / "checkpoint-9-best"),
        Checkpoint(9, tmp_path / "checkpoint-9-epoch-2"),
        Checkpoint(10, tmp_path / "checkpoint-10"),
        Checkpoint(100, tmp_path / "checkpoint-100-loss-1_80"),
    ]
    assert checkpoints(tmp_path / "not there") == []


def test_the_first_free_name(tmp_path):
    (tmp_path / "a").mkdir()
    assert free_name(tmp_path, "a") == "a-2"
    (tmp_path / "a-2").mkdir()
    assert free_name(tmp_path, "a") == "a-3"


def test_a_slim_checkpoint_is_only_the_lora(tmp_path):
    folder = write_lora(write_checkpoint(tmp_path, "checkpoint-4") / "checkpoint-4")
    (folder / "adapter_config.json").write_text("{}", encoding="utf-8")
    (folder / "optimizer.pt").write_bytes(100 * b"o")
    (folder / "rng_state.pth").write_bytes(b"r")
    (folder / "mine.txt").write_bytes(b"mine")
    assert size_on_disk(folder) == 7 + 2 + 2 + 100 + 1 + 4
    assert slim_checkpoint(folder) == 2 + 100 + 1
    assert sorted(p.name for p in folder.iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
        "mine.txt",
    ]
    assert has_lora(folder)
    assert checkpoints(tmp_path) == []
    assert slim_checkpoint(folder) == 0


def test_what_a_kill_interrupted_is_finished_and_nothing_else_is_changed(tmp_path):
    """Checkpoints of other programs have no state file of ours."""
    files = {
        **on_disk.checkpoint("checkpoint-2", 2),
        "checkpoint-40/adapter_model.bin": "w",
        "checkpoint-40/training_prompt.json": {},
        "checkpoint-40/optimizer.bin": "o",
        "checkpoint-80/pytorch_model.bin": "w",
        "checkpoint-old notes/mine.txt": "mine",
        "story.part": "somebody's download",
    }
    run = on_disk.write_files(tmp_path, "a", files)
    before = read_tree(run)
    partial_files = {
        ".checkpoint-4-epoch-1.part/adapter_model.safetensors": "w",
        "backup/.checkpoint-3.part/optimizer.pt": "o",
        **{
            path.replace("run_state.json", "run_state.json.part"): content
            for path, content in on_disk.checkpoint("checkpoint-6-user", 6).items()
        },
        "training_graph.json.part": "[",
    }
    on_disk.write_files(tmp_path, "a", partial_files)
    RunFolder(run, tmp_path).recover()
    added = {path: content for path, content in read_tree(run).items() if path not in before}
    assert sorted(added) == [
        "backup/",
        "checkpoint-6-user/",
        "checkpoint-6-user/adapter_config.json",
        "checkpoint-6-user/adapter_model.safetensors",
    ]
    assert {path: read_tree(run)[path] for path in before} == before


def test_backups_that_a_kill_left_half_removed_are_not_listed(tmp_path, monkeypatch):
    run = on_disk.write_files(tmp_path, "a", on_disk.checkpoint("backup/checkpoint-3", 3))
    folder = RunFolder(run, tmp_path)

    def killed(path):
        (path / "checkpoint-3" / "adapter_model.safetensors").unlink()
        raise KeyboardInterrupt

    with monkeypatch.context() as patch:
        patch.setattr(loras, "remove_folder", killed)
        with pytest.raises(KeyboardInterrupt):
            folder.remove_backups()
    assert resumable_checkpoints(run) == []
    folder.recover()
    assert read_tree(run) == {}
    folder.remove_backups()  # there are none


def test_a_checkpoint_without_a_lora_is_not_slimmed(tmp_path):
    folder = write_checkpoint(tmp_path, "checkpoint-4") / "checkpoint-4"
    with pytest.raises(SavingError, match="has no LoRA"):
        slim_checkpoint(folder)
    assert (folder / "run_state.json").is_file()


def test_everything_that_can_be_loaded_is_listed(tmp_path):
    for path in ("b", "a/checkpoint-10", "a/checkpoint-9", "a/backup/checkpoint-3", "gone-np", "a"):
        (tmp_path / path).mkdir(parents=True, exist_ok=True)
        (tmp_path / path / "adapter_model.safetensors").touch()
    (tmp_path / "b" / "checkpoint-1").mkdir()  # holds nothing
    names = ["a", "a/backup/checkpoint-3", "a/checkpoint-9", "a/checkpoint-10", "b"]
    assert list_loadable(tmp_path) == names
    assert list_loadable(tmp_path / "nowhere") == []
