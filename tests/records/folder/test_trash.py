"""Trash: items can be restored until it is emptied, and LoRAs in use are not moved."""

import os
import time

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.records.folder import hold_run_lock, loras, trash
from training_pro.tests.fakes import make_folders
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
    item = trash.move_to_trash(name, folders)
    assert not (folders.loras / name).exists()
    assert [(found.name, found.size) for found in trash.list_trash(folders)] == [(name, item.size)]
    assert trash.restore_item(trash.list_trash(folders)[0], folders) == folders.loras / name
    assert read_tree(folders.loras) == before


def test_the_same_name_twice(folders):
    trash.move_to_trash("story", folders)
    write_files(folders.loras, "story", {"adapter_model.safetensors": "second"})
    assert trash.restore_item(trash.list_trash(folders)[0], folders).name == "story-2"
    assert loras.list_loras(folders.loras) == ["story", "story-2"]


def test_emptied_items_are_gone(folders):
    size = trash.move_to_trash("story", folders).size
    trash.move_to_trash("night/checkpoint-4", folders)
    assert trash.empty_trash(folders, "story") == size
    assert [item.name for item in trash.list_trash(folders)] == ["night/checkpoint-4"]
    assert trash.empty_trash(folders) > 0 and trash.empty_trash(folders) == 0
    assert [path.name for path in folders.loras.iterdir()] == ["night"]


def test_what_is_in_use_stays(folders):
    with hold_run_lock("night", folders), pytest.raises(BusyError, match="'night' is being trained"):
        trash.move_to_trash("night/checkpoint-4", folders)
    for name in ("story", "story/checkpoint-4-epoch-1"):
        with pytest.raises(BusyError, match="is attached to the model"):
            trash.move_to_trash(name, folders, loaded=["story/checkpoint-4-epoch-1"])
    with pytest.raises(SavingError, match="There is no LoRA 'other'"):
        trash.move_to_trash("other", folders)
    assert trash.list_trash(folders) == []


def test_a_checkpoint_is_restored_only_into_its_own_run_that_has_ended(folders):
    part = trash.move_to_trash("story/checkpoint-6-user", folders)
    with hold_run_lock("story", folders), pytest.raises(BusyError):
        trash.restore_item(part, folders)
    later = time.time() + 5
    os.utime(folders.loras / "story" / "training_parameters.json", (later, later))
    with pytest.raises(SavingError, match="'story' was trained after it was deleted"):
        trash.restore_item(part, folders)
    trash.move_to_trash("story", folders)
    with pytest.raises(SavingError, match="is part of 'story', which is in the trash"):
        trash.restore_item(part, folders)
    assert {item.name for item in trash.list_trash(folders)} == {"story", "story/checkpoint-6-user"}
