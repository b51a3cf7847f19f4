"""Names of LoRAs, checkpoints and runs on a command line: what is none is refused, and nothing is touched."""

from __future__ import annotations

import pytest
from training_pro.commands import options
from training_pro.commands.main import main
from training_pro.core.errors import SavingError, SettingsError
from training_pro.records.folder import choose_run_folder
from training_pro.settings.parsing import training_settings
from training_pro.tests import hostile
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, lora, write_files
from training_pro.tests.tiny import read_tree

ACTS = (("--delete",), ("--slim",), ("--note", "n"), ("--as", "new"), ("--restore",))
STORY = {"name": "story", "data": ["a.txt"]}


@pytest.fixture
def folders(tmp_path):
    """LoRAs, a model, and a folder beside the working folder to which a link leads."""
    found = make_folders(tmp_path / "root")
    write_files(found.loras, "story", FINISHED)
    write_files(found.loras, "night", CUT_OFF)
    write_files(found.models, "tiny", {"config.json": {}})
    write_files(tmp_path, "outside", FINISHED)
    hostile.plant_link(found.loras, tmp_path / "outside")
    values = hostile.hostile_values(tmp_path / "outside")
    assert all(hostile.is_harmless(value, found.loras, tmp_path) for value in values)
    return found


@pytest.fixture
def names(folders, tmp_path):
    """Those that a command line can hold; with blanks around or a slash behind, a console has put them there."""
    values = hostile.some(hostile.hostile_values(tmp_path / "outside"))
    return [name for name in values if "\x00" not in name]


def test_runs_touches_nothing(folders, names, tmp_path, capsys):
    before = read_tree(tmp_path)
    for number, name in enumerate(names):
        for words in ([name, *ACTS[number % len(ACTS)]], ["story", "--as", name]):
            try:
                code = main(["runs", *words, "--user-data", str(folders.loras.parent)])
            except SystemExit as end:  # a wrong command line ends by itself
                code = end.code
            assert code in (1, 2), words
    assert read_tree(tmp_path) == before
    assert "Traceback" not in capsys.readouterr().err


def test_the_name_of_a_run_and_the_checkpoint_that_it_goes_on_from(folders, names):
    theirs = ("checkpoint-4-epoch-1", "checkpoint-6-user")  # of a path the last part is meant, in the run's folder
    story = training_settings(STORY)
    for name in names:
        with pytest.raises((SettingsError, SavingError)):
            choose_run_folder(training_settings({**STORY, "name": name, "if_exists": "replace"}), folders, "")
        if name and not name.endswith(theirs):
            with pytest.raises(SavingError, match="The checkpoint"):
                choose_run_folder(story, folders, name)
    assert choose_run_folder(story, folders, "checkpoint-4-epoch-1").start_step == 4
    with pytest.raises(SavingError, match=r"'Backup-2026-11-20' of 'story' is not a checkpoint\."):
        choose_run_folder(story, folders, "Backup-2026-11-20")


def test_a_lora_is_a_name_else_a_path_of_the_command_lines(folders, tmp_path):
    elsewhere = write_files(tmp_path, "elsewhere", lora())
    for name in ("story", "story/checkpoint-4-epoch-1", "night/backup/checkpoint-5"):
        assert options.find_lora(name, folders) == name
    assert options.find_lora(str(elsewhere), folders) == elsewhere
    with pytest.raises(SavingError, match=r"There is no LoRA '\.\./models/tiny'"):
        options.find_lora("../models/tiny", folders)
