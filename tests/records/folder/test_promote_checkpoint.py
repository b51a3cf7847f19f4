"""A checkpoint copied to a LoRA of its own, with its settings and log."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import RecallFigures, RecallMeasured
from training_pro.records.folder import copy_as_lora, inventory, read_log, trained_steps
from training_pro.records.folder.loras import list_loras, slim_checkpoint
from training_pro.records.folder.run_files import read_note, write_note
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, LOG, write_files
from training_pro.tests.tiny import read_tree


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path)
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "night", CUT_OFF)
    return folders


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def test_with_its_parameters_and_its_log(folders):
    before = read_tree(folders.loras / "story")
    new = copy_as_lora(folders.loras / "story" / "checkpoint-4-epoch-1", "early", folders)
    assert read_tree(folders.loras / "story") == before
    assert list_loras(folders.loras) == ["early", "story"]
    assert read(new / "training_parameters.json") == {"name": "early", "rank": 4}
    assert read(new / "training_prompt.json") == {"kind": "text"}
    log = read(new / "training_log.json")
    assert next(iter(log)) == "base_model_name"
    assert [log[key] for key in ("base_model_name", "current_steps", "loss", "smoothed_loss", "made_from")] == [
        "toy", 4, 2.5, 2.5, "story/checkpoint-4-epoch-1",
    ]  # fmt: skip
    assert [entry["current_steps"] for entry in read(new / "training_graph.json")] == [1, 2, 3, 4]
    assert (new / "samples.jsonl").read_text() == '{"step": 0, "text": "a"}\n'
    assert not (new / "optimizer.pt").exists()
    listing = inventory.read_entry(new, folders)
    assert (listing.status, listing.step, listing.loss, listing.parts) == ("stopped", 4, 2.5, ())
    last = copy_as_lora(folders.loras / "story" / "checkpoint-8-epoch-2", "last", folders)
    assert inventory.read_entry(last, folders).status == "finished"


def test_a_copied_checkpoint_is_not_the_best_step_of_its_run(folders):
    log = {**LOG, "kept_step": 6, "kept_because": "the one with the best smoothed loss (1.5000)"}
    write_files(folders.loras, "story", {"training_log.json": log})
    new = copy_as_lora(folders.loras / "story" / "checkpoint-4-epoch-1", "early", folders)
    assert not {"kept_step", "kept_because"} & read(new / "training_log.json").keys()
    assert [trained_steps(read_log(folder)) for folder in (folders.loras / "story", new)] == [6, 4]


def test_from_a_crashed_run(folders):
    slim_checkpoint(folders.loras / "night" / "checkpoint-4")
    slimmed = copy_as_lora(folders.loras / "night" / "checkpoint-4", "slimmed", folders)
    backup = copy_as_lora(folders.loras / "night" / "backup" / "checkpoint-5", "timed", folders)
    assert read(slimmed / "training_log.json")["current_steps"] == 4
    assert not (slimmed / "training_graph.json").exists()
    assert read(backup / "training_log.json")["smoothed_loss"] == 2.25
    assert read(backup / "training_log.json")["made_from"] == "night/backup/checkpoint-5"
    assert read(backup / "training_parameters.json") == {"name": "timed"}


def test_a_backup_comes_with_its_own_records(folders):
    old = copy_as_lora(folders.loras / "story" / "Backup-2026-11-20", "old", folders)
    log = read(old / "training_log.json")
    assert (log["base_model_name"], log["current_steps"], log["ended"]) == ("older", 3, "finished")
    assert log["made_from"] == "story/Backup-2026-11-20"
    assert read(old / "training_parameters.json") == {"name": "old", "rank": 2}
    assert not (old / "samples.jsonl").exists()


@pytest.mark.parametrize(
    ("name", "words"), [("story", "'story' already exists"), ("a.b", "contains a dot"), ("../x", "is a path")]
)
def test_names_that_are_refused(folders, name, words):
    before = read_tree(folders.loras)
    with pytest.raises(SavingError, match=words):
        copy_as_lora(folders.loras / "story" / "checkpoint-6-user", name, folders)
    assert read_tree(folders.loras) == before


def test_nothing_partial_is_left(folders, monkeypatch):
    before = read_tree(folders.loras)

    def full(*_):
        raise OSError(28, "No space left on device")

    monkeypatch.setattr("training_pro.records.folder.promote_checkpoint.shutil.copy2", full)
    with pytest.raises(SavingError, match="No space left on device"):
        copy_as_lora(folders.loras / "story" / "checkpoint-6-user", "new", folders)
    assert read_tree(folders.loras) == before


def test_a_note_comes_and_goes(folders):
    folder = folders.loras / "story"
    write_note(folder, "  writes like her \u00e4\n")
    assert read_note(folder) == "writes like her \u00e4"
    write_note(folder, " ")
    assert read_note(folder) == ""
    assert not (folder / "notes.txt").exists()


def test_a_copied_checkpoint_has_the_recall_up_to_its_step_and_no_verdict_on_the_whole_run(folders):
    learned = RecallFigures(9, 0.5, 0, 3, 2.0)
    recalls = [
        RecallMeasured(step=n, epoch=n / 4, why="planned", learned=learned, control=None) for n in (0, 4, 8)
    ]
    verdict = {"text": "The model knows it by heart."}
    log = {**LOG, "recall": [recall.as_log() for recall in recalls], "verdict": verdict}
    write_files(folders.loras, "story", {"training_log.json": log})
    early = copy_as_lora(folders.loras / "story" / "checkpoint-4-epoch-1", "early", folders)
    last = copy_as_lora(folders.loras / "story" / "checkpoint-8-epoch-2", "last", folders)
    damage: list[str] = []
    assert [recall.step for recall in read_log(early, damage)["recall"]] == [0, 4]
    assert [recall.step for recall in read_log(last, damage)["recall"]] == [0, 4, 8]
    assert "verdict" not in read(early / "training_log.json") and "verdict" in read(last / "training_log.json")
    assert damage == []
