"""Trash: items can be restored until it is emptied, and LoRAs in use are not moved."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.core.files import atomic_files
from training_pro.records.folder.loras import listed
from training_pro.records.folder.run_lock import in_progress
from training_pro.records.folder.trash import empty, restore, throw_away, thrown
from training_pro.tests.fakes import keep_what_is_read_only, made_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, made
from training_pro.tests.tiny import tree


@pytest.fixture
def folders(tmp_path):
    folders = made_folders(tmp_path)
    made(folders.loras, "story", FINISHED)
    made(folders.loras, "night", CUT_OFF)
    return folders


@pytest.mark.parametrize("name", ["story", "story/checkpoint-4-epoch-1", "night/backup/checkpoint-5"])
def test_moved_to_the_trash_and_restored(folders, name):
    before = tree(folders.loras)
    item = throw_away(name, folders)
    assert not (folders.loras / name).exists()
    assert [(t.name, t.size) for t in thrown(folders)] == [(name, item.size)]
    assert restore(thrown(folders)[0], folders) == folders.loras / name
    assert tree(folders.loras) == before


def test_the_same_name_twice(folders):
    throw_away("story", folders)
    made(folders.loras, "story", {"adapter_model.safetensors": "second"})
    throw_away("story", folders)
    made(folders.loras, "story", {"adapter_model.safetensors": "third"})
    assert [t.name for t in thrown(folders)] == ["story", "story"]
    latest = restore(thrown(folders)[0], folders)
    assert (latest.name, (latest / "adapter_model.safetensors").read_text()) == ("story-2", "second")
    assert listed(folders.loras) == ["story", "story-2"]


def test_a_checkpoint_without_its_lora(folders):
    part = throw_away("story/checkpoint-6-user", folders)
    throw_away("story", folders)
    with pytest.raises(SavingError, match="belongs to 'story', which is gone"):
        restore(part, folders)
    assert {t.name for t in thrown(folders)} == {"story", "story/checkpoint-6-user"}


def test_emptied_items_are_gone(folders):
    size = throw_away("story", folders).size
    throw_away("night/checkpoint-4", folders)
    assert empty(folders, "story") == size
    assert [t.name for t in thrown(folders)] == ["night/checkpoint-4"]
    assert empty(folders) > 0
    assert sorted(p.name for p in folders.loras.iterdir()) == ["night"]
    assert empty(folders) == 0


def test_what_is_in_use_stays(folders):
    with in_progress("night", folders), pytest.raises(BusyError, match="'night' is being trained"):
        throw_away("night/checkpoint-4", folders)
    for name in ("story", "story/checkpoint-4-epoch-1"):
        with pytest.raises(BusyError, match="is on the model just now"):
            throw_away(name, folders, on=["story/checkpoint-4-epoch-1"])
    with pytest.raises(SavingError, match="There is no LoRA 'other'"):
        throw_away("other", folders)
    assert thrown(folders) == []


def test_a_folder_that_another_program_holds(folders, monkeypatch):
    def fail(self, target):
        raise PermissionError(13, "The process cannot access the file")

    monkeypatch.setattr(atomic_files, "PAUSES_SECONDS", (0.001,))
    monkeypatch.setattr(Path, "replace", fail)
    with pytest.raises(SavingError, match="cannot access the file"):
        throw_away("story", folders)
    assert listed(folders.loras) == ["story"]
    assert not (folders.loras / "trash-np").exists()


def test_a_folder_that_is_open_for_a_moment_is_waited_for(folders, monkeypatch):
    monkeypatch.setattr(atomic_files, "PAUSES_SECONDS", (0.001, 0.001))
    replace, tries = Path.replace, []

    def fail_twice(self, target):
        tries.append(target)
        if len(tries) < 3:
            raise PermissionError(13, "Access is denied", str(self))
        return replace(self, target)

    monkeypatch.setattr(Path, "replace", fail_twice)
    throw_away("story", folders)
    assert listed(folders.loras) == []


def test_a_clone_of_a_lora_is_gone_with_what_git_has_made_read_only(folders, monkeypatch):
    pack = folders.loras / "story" / ".git" / "pack"
    pack.parent.mkdir()
    pack.touch(0o444)
    throw_away("story", folders)
    keep_what_is_read_only(monkeypatch)
    empty(folders)
    assert thrown(folders) == []
