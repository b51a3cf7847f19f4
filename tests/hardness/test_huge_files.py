"""Settings, presets, formats and notes of 20 GB (sparse files) are refused at once: they are never read whole."""

from __future__ import annotations

import os
import sys
import time

import pytest
from training_pro.core.errors import TrainingProError
from training_pro.data.rows.prompt_formats import load_templates
from training_pro.engine.lora.warm_start import _load_config
from training_pro.records.folder.run_files import read_note
from training_pro.settings import presets
from training_pro.settings.files import load_settings
from training_pro.tests.fakes import make_folders

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse there")
HUGE_BYTES = 20_000_000_000
MAX_SECONDS = 5


@pytest.fixture
def folders(tmp_path):
    """A working folder with files of 20 GB that take no space on the disk."""
    folders = make_folders(tmp_path)
    for path in (
        folders.presets / "mine.json",
        folders.presets / "loras.json",
        folders.formats / "wide.json",
        folders.loras / "a" / "adapter_config.json",
        folders.loras / "a" / "notes.txt",
    ):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"rank": 8, "x": "')
        os.truncate(path, HUGE_BYTES)
    return folders


@pytest.mark.parametrize(
    "read",
    [
        lambda folders: load_settings(folders.presets / "mine.json"),
        lambda folders: presets.load_table("loras", folders.presets),
        lambda folders: presets.find_preset("mine", folders.presets),
        lambda folders: load_templates("wide", folders),
        lambda folders: _load_config(folders.loras / "a"),
    ],
    ids=["settings", "presets", "own preset", "format", "adapter config"],
)
def test_a_huge_file_is_refused_with_a_sentence(folders, read):
    began = time.monotonic()
    with pytest.raises(TrainingProError, match=r"larger than 4 MB|not a preset file"):
        read(folders)
    assert time.monotonic() - began < MAX_SECONDS


def test_lists_leave_huge_files_out(folders):
    assert read_note(folders.loras / "a") == ""
