"""Names of LoRAs, checkpoints and runs on a command line: what is none is refused, and nothing is touched."""

from __future__ import annotations

import pytest
from training_pro.commands import options
from training_pro.commands.main import main
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.host import Folders
from training_pro.records.folder import choose_run_folder
from training_pro.settings.parsing import training_settings
from training_pro.tests import hostile
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, lora, write_files
from training_pro.tests.tiny import read_tree

ACTS = (("--delete",), ("--slim",), ("--note", "n"), ("--as", "new"), ("--restore",))


@pytest.fixture
def folders(tmp_path) -> Folders:
    """LoRAs, a model, and a folder beside the working folder to which a link leads."""
    found = make_folders(tmp_path / "root")
    write_files(found.loras, "story", FINISHED)
    write_files(found.loras, "night", CUT_OFF)
    write_files(found.models, "tiny", {"config.json": {}})
    write_files(tmp_path, "outside", FINISHED)
    hostile.plant_link(found.loras, tmp_path / "outside")
    assert all(
        hostile.is_harmless(value, found.loras, tmp_path) for value in hostile.hostile_values(tmp_path / "outside")
    )
    return found


def names(folders):
    """Those that a command line can hold; with blanks around or a slash behind, a console has put them there."""
    values = hostile.some(hostile.hostile_values(folders.loras.parent.parent / "outside"))
    return [name for name in values if "\x00" not in name]


def ended(*words):
    """The exit status; a wrong command line ends by itself."""
    try:
        return main(["runs", *words])
    except SystemExit as end:
        return end.code


@pytest.mark.parametrize("act", ACTS, ids=lambda act: act[0])
def test_runs_touches_nothing(folders, act, capsys):
    root = folders.loras.parent
    before = read_tree(root.parent)
    for name in names(folders):
        assert ended(name, *act, "--user-data", str(root)) in (1, 2), name
    assert read_tree(root.parent) == before
    assert "Traceback" not in capsys.readouterr().err


def test_a_name_for_a_copy(folders, capsys):
    before = read_tree(folders.loras.parent.parent)
    for name in names(folders):
        assert ended("story", "--as", name, "--user-data", str(folders.loras.parent)) in (1, 2), name
    assert read_tree(folders.loras.parent.parent) == before


def test_the_name_of_a_run(folders):
    for name in names(folders):
        with pytest.raises((SettingsError, SavingError)):
            choose_run_folder(
                training_settings({"name": name, "data": ["a.txt"], "if_exists": "replace"}), folders, ""
            )


def test_the_checkpoint_that_a_run_goes_on_from(folders):
    settings = training_settings({"name": "story", "data": ["a.txt"]})
    theirs = ("checkpoint-4-epoch-1", "checkpoint-6-user")  # of a path the last part is meant, in the run's folder
    for name in filter(lambda name: name and not name.endswith(theirs), names(folders)):
        with pytest.raises(SavingError, match="The checkpoint"):
            choose_run_folder(settings, folders, name)
    assert choose_run_folder(settings, folders, "checkpoint-4-epoch-1").start_step == 4


def test_a_lora_is_a_name_else_a_path_of_the_command_lines(folders, tmp_path):
    elsewhere = write_files(tmp_path, "elsewhere", lora())
    assert options.find_lora("story", folders) == "story"
    assert options.find_lora("story/checkpoint-4-epoch-1", folders) == "story/checkpoint-4-epoch-1"
    assert options.find_lora("night/backup/checkpoint-5", folders) == "night/backup/checkpoint-5"
    assert options.find_lora(str(elsewhere), folders) == elsewhere
    with pytest.raises(SavingError, match=r"There is no LoRA '\.\./models/tiny'"):
        options.find_lora("../models/tiny", folders)


def test_a_folder_that_is_no_checkpoint_is_called_so(folders):
    settings = training_settings({"name": "story", "data": ["a.txt"]})
    with pytest.raises(SavingError, match=r"'Backup-2026-11-20' of 'story' is not a checkpoint\."):
        choose_run_folder(settings, folders, "Backup-2026-11-20")
