"""Trash: items can be restored until it is emptied, and LoRAs in use are not moved."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.core.files import atomic_files
from training_pro.records.folder import hold_run_lock
from training_pro.records.folder.loras import list_loras
from training_pro.records.folder.trash import empty_trash, list_trash, move_to_trash, restore_item
from training_pro.tests.fakes import make_folders, refuse_to_remove_read_only_files
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files
from training_pro.tests.tiny import read_tree


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path)
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "night", CUT_OFF)
    return folders


@pytest.mark.parametrize("name", ["story", "story/checkpoint-4-epoch-1", "night/backup/checkpoint-5"])
def test_moved_to_the_trash_and_restored(folders, name):
    before = read_tree(folders.loras)
    item = move_to_trash(name, folders)
    assert not (folders.loras / name).exists()
    assert [(t.name, t.size) for t in list_trash(folders)] == [(name, item.size)]
    assert restore_item(list_trash(folders)[0], folders) == folders.loras / name
    assert read_tree(folders.loras) == before


def test_the_same_name_twice(folders):
    move_to_trash("story", folders)
    write_files(folders.loras, "story", {"adapter_model.safetensors": "second"})
    move_to_trash("story", folders)
    write_files(folders.loras, "story", {"adapter_model.safetensors": "third"})
    assert [t.name for t in list_trash(folders)] == ["story", "story"]
    latest = restore_item(list_trash(folders)[0], folders)
    assert (latest.name, (latest / "adapter_model.safetensors").read_text()) == ("story-2", "second")
    assert list_loras(folders.loras) == ["story", "story-2"]


def test_a_checkpoint_without_its_lora(folders):
    part = move_to_trash("story/checkpoint-6-user", folders)
    move_to_trash("story", folders)
    with pytest.raises(SavingError, match="is part of 'story', which is in the trash"):
        restore_item(part, folders)
    assert {t.name for t in list_trash(folders)} == {"story", "story/checkpoint-6-user"}


def test_emptied_items_are_gone(folders):
    size = move_to_trash("story", folders).size
    move_to_trash("night/checkpoint-4", folders)
    assert empty_trash(folders, "story") == size
    assert [t.name for t in list_trash(folders)] == ["night/checkpoint-4"]
    assert empty_trash(folders) > 0
    assert sorted(p.name for p in folders.loras.iterdir()) == ["night"]
    assert empty_trash(folders) == 0


def test_what_is_in_use_stays(folders):
    with hold_run_lock("night", folders), pytest.raises(BusyError, match="'night' is being trained"):
        move_to_trash("night/checkpoint-4", folders)
    for name in ("story", "story/checkpoint-4-epoch-1"):
        with pytest.raises(BusyError, match="is attached to the model"):
            move_to_trash(name, folders, loaded=["story/checkpoint-4-epoch-1"])
    with pytest.raises(SavingError, match="There is no LoRA 'other'"):
        move_to_trash("other", folders)
    assert list_trash(folders) == []


def test_a_folder_that_another_program_holds(folders, monkeypatch):
    def fail(self, target):
        raise PermissionError(13, "The process cannot access the file")

    monkeypatch.setattr(atomic_files, "RETRY_PAUSES_SECONDS", (0.001,))
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SavingError, match="cannot access the file"):
        move_to_trash("story", folders)
    assert list_loras(folders.loras) == ["story"]
    assert not (folders.loras / "trash-np").exists()


def test_a_folder_that_is_open_for_a_moment_is_waited_for(folders, monkeypatch):
    monkeypatch.setattr(atomic_files, "RETRY_PAUSES_SECONDS", (0.001, 0.001))
    replace, tries = Path.replace, []

    def fail_twice(self, target):
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "Access is denied", str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail_twice)
    move_to_trash("story", folders)
    assert list_loras(folders.loras) == []


def test_a_clone_of_a_lora_is_gone_with_what_git_has_made_read_only(folders, monkeypatch):
    pack = folders.loras / "story" / ".git" / "pack"
    pack.parent.mkdir()
    pack.touch(0o444)
    move_to_trash("story", folders)
    refuse_to_remove_read_only_files(monkeypatch)
    empty_trash(folders)
    assert list_trash(folders) == []


def test_a_checkpoint_is_not_restored_into_a_run_that_was_trained_later(folders):
    part = move_to_trash("story/checkpoint-6-user", folders)
    later = time.time() + 5
    os.utime(folders.loras / "story" / "training_parameters.json", (later, later))
    with pytest.raises(SavingError, match="'story' was trained after it was deleted"):
        restore_item(part, folders)
    assert part.folder.is_dir()


def test_a_checkpoint_is_not_restored_into_a_run_in_progress(folders):
    part = move_to_trash("story/checkpoint-6-user", folders)
    with hold_run_lock("story", folders), pytest.raises(BusyError):
        restore_item(part, folders)
    assert restore_item(part, folders).is_dir()
