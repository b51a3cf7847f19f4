"""Where a merged model or a GGUF file may be written."""

from __future__ import annotations

import pytest
from training_pro.core.errors import SavingError
from training_pro.records.folder import choose_output
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import FINISHED, lora, write_files


@pytest.fixture
def folders(tmp_path):
    made = make_folders(tmp_path / "root")
    write_files(made.loras, "story", FINISHED)
    write_files(made.loras, "trash-np", {"2026-11-21/lora/gone/notes.txt": ""})
    write_files(made.models, "tiny", {"config.json": {}})
    write_files(tmp_path, "elsewhere", {**lora(), "deep/er/a.txt": ""})
    write_files(tmp_path, "whole", {"config.json": {}, "model.safetensors": ""})
    return made


@pytest.mark.parametrize(
    "place",
    [
        *("root/loras/story", "root/loras/story/merged", "root/loras/story/checkpoint-4-epoch-1/merged"),
        *("elsewhere", "elsewhere/merged", "elsewhere/deep/er/merged", "elsewhere/deep/../merged"),
        *("root/models/tiny", "root/models/tiny/merged", "whole/merged"),
        *("root/user/training/datasets/merged", "root/user/training/presets/merged", "root/logs/merged"),
        *("root/examples/merged", "root/loras/trash-np/merged"),
    ],
)
def test_the_folder_of_another_is_refused(folders, tmp_path, place):
    with pytest.raises(SavingError, match="Choose a separate folder"):
        choose_output(str(tmp_path / place), folders)


@pytest.mark.parametrize("place", ["root/models/new", "root/loras/new", "free/deep/new", "root/user/new"])
def test_a_new_folder_is_fine(folders, tmp_path, place):
    (tmp_path / "config.json").write_text("{}")  # of another program
    assert choose_output(str(tmp_path / place), folders) == tmp_path / place


@pytest.mark.parametrize(
    "name", ["", " ", "x" * 256, "x" * 5000, "\u00fc" * 200, "a\x00b", "a\ud800", "a\n", "con", "a."]
)
def test_a_name_that_no_disk_holds_is_a_short_refusal(folders, tmp_path, name):
    with pytest.raises(SavingError) as refusal:
        choose_output(str(tmp_path / name) if name.strip() else name, folders)
    assert str(refusal.value).encode() and len(str(refusal.value)) < 400


def test_the_home_of_nobody_is_a_short_refusal(folders):
    with pytest.raises(SavingError, match=r"The user named in .* does not exist"):
        choose_output("~training-pro-not-there/merged", folders)


def test_a_path_that_is_too_long_is_a_short_refusal(folders, tmp_path):
    with pytest.raises(SavingError):
        choose_output(str(tmp_path) + "/x" * 5000, folders)


def test_a_link_into_a_lora_is_refused(folders, tmp_path):
    (tmp_path / "linked").symlink_to(folders.loras / "story", target_is_directory=True)
    with pytest.raises(SavingError, match="is in the folder of the LoRA 'story'"):
        choose_output(str(tmp_path / "linked" / "merged"), folders)


def test_files_of_a_lora_may_lie_beside_it(folders):
    own = folders.loras / "story"
    assert choose_output(str(own / "a.gguf"), folders, own=own) == own / "a.gguf"
