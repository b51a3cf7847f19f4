"""The inventory: status, steps and size of each LoRA, and how names are resolved."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.folder import hold_run_lock, inventory
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, lora, write_files


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path)
    write_files(folders.loras, "story 10", FINISHED)
    write_files(folders.loras, "story 2", CUT_OFF)
    write_files(folders.loras, "trash-np", lora())
    write_files(folders.loras, "pictures", {"a.png": "p"})
    return folders


def test_each_lora_with_its_parts(folders):
    cut, done = inventory.list_entries(folders)
    assert [cut.name, cut.status, cut.model, cut.step, cut.loss] == ["story 2", "cut off", "toy-7B", 5, 2.25]
    assert [done.name, done.status, done.model, done.step, done.steps] == [
        "story 10",
        "finished",
        "toy",
        8,
        8,
    ]
    assert (done.loss, done.note, done.when) == (1.75, "the good one", 1795243200.0)
    assert [(p.name, p.kind, p.step) for p in done.parts] == [
        ("checkpoint-4-epoch-1", "checkpoint", 4),
        ("checkpoint-6-user", "checkpoint", 6),
        ("checkpoint-8-epoch-2", "checkpoint", 8),
        ("Backup-2026-11-20", "earlier", None),
    ]
    assert [(p.name, p.kind) for p in cut.parts] == [
        ("checkpoint-2", "LoRA only"),
        ("checkpoint-4", "checkpoint"),
        ("checkpoint-5", "backup"),
    ]
    assert done.size == sum(f.stat().st_size for f in done.folder.rglob("*") if f.is_file())
    assert json.loads(json.dumps(done.as_json()))["parts"][0]["step"] == 4


def test_a_run_that_goes_on_now_is_in_progress(folders):
    with hold_run_lock("story 2", folders):
        assert [one.status for one in inventory.list_entries(folders)] == ["in progress", "finished"]
    assert [one.status for one in inventory.list_entries(folders)] == ["cut off", "finished"]


def test_a_run_is_listed_before_its_first_checkpoint(folders):
    (folders.loras / "new").mkdir()
    assert "new" not in [one.name for one in inventory.list_entries(folders)]
    with hold_run_lock("new", folders):
        (new, *_) = inventory.list_entries(folders)
    assert [new.name, new.status, new.step] == ["new", "in progress", 0]


def test_names_are_resolved_to_folders(folders):
    assert inventory.find_folder("story 10", folders) == folders.loras / "story 10"
    assert (
        inventory.find_folder("story 2/backup/checkpoint-5", folders)
        == folders.loras / "story 2/backup/checkpoint-5"
    )
    assert inventory.find_folder("story 2\\checkpoint-4\\", folders).name == "checkpoint-4"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("stroy 2", "There is no LoRA 'stroy 2' .* Did you mean 'story 2'"),
        ("../loras", r"There is no LoRA '\.\.'"),
        ("trash-np", "There is no LoRA 'trash-np'"),
        ("story 2/checkpoint-9", "checkpoint-2, checkpoint-4, backup/checkpoint-5"),
        ("story 2/../story 10", "has no checkpoint"),
    ],
)
def test_an_unknown_name_is_an_error(folders, name, words):
    with pytest.raises(SavingError, match=words):
        inventory.find_folder(name, folders)


def test_the_newest_the_best_and_those_saved_by_hand_stay_whole(folders):
    write_files(folders.loras, "story 10", {"checkpoint-5-best/run_state.json": {}})
    assert [p.name for p in inventory.slimmable_checkpoints(folders.loras / "story 10")] == [
        "checkpoint-4-epoch-1"
    ]


def test_no_folder_yet(tmp_path):
    empty = make_folders(tmp_path)
    assert inventory.list_entries(empty) == []
    with pytest.raises(SavingError, match="There is no LoRA 'a'"):
        inventory.find_folder("a", empty)


def test_a_link_that_leads_nowhere_does_not_hide_the_other_runs(folders):
    (folders.loras / "story 2" / "samples.jsonl.part").symlink_to(folders.loras / "gone")
    assert [entry.name for entry in inventory.list_entries(folders)] == ["story 2", "story 10"]


def test_what_is_made_smaller_of_a_chosen_part(folders):
    story, cut_off = folders.loras / "story 10", folders.loras / "story 2"
    for complete in (story / "checkpoint-4-epoch-1", cut_off / "backup" / "checkpoint-5"):
        assert inventory.slimmable_checkpoints(complete) == [complete]
    for nothing_to_remove in (story / "Backup-2026-11-20", cut_off / "checkpoint-2"):
        assert inventory.slimmable_checkpoints(nothing_to_remove) == []
