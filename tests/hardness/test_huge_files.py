"""Settings, presets, formats and notes of 20 GB (sparse files) are refused at once: they are never read whole."""

from __future__ import annotations

import os
import sys

import pytest
from training_pro.core.errors import TrainingProError
from training_pro.records.folder import inventory
from training_pro.settings import presets
from training_pro.settings.files import load_settings
from training_pro.tests.records.on_disk import FINISHED, write_files

HUGE_BYTES = 20_000_000_000


@pytest.mark.skipif(sys.platform == "win32", reason="files are not sparse there")
def test_a_huge_file_is_refused_with_a_sentence_and_left_out_of_lists(place):
    folders = place.folders
    write_files(folders.loras, "a", FINISHED)
    names = ("presets/mine.json", "presets/loras.json", "formats/wide.json")
    files = [folders.presets.parent / name for name in names]
    for path in (*files, folders.loras / "a" / "adapter_config.json", folders.loras / "a" / "notes.txt"):
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b'{"rank": 8, "x": "')
        os.truncate(path, HUGE_BYTES)
    place.write("rows.jsonl", '{"instruction": "a", "output": "b"}\n' * 9)
    continued = {"if_exists": "continue", "cutoff": "auto", "data": ["rows.jsonl"]}
    for read in (
        lambda: load_settings(files[0]),
        lambda: presets.load_table("loras", folders.presets),
        lambda: presets.find_preset("mine", folders.presets),
        lambda: place.train(**{**continued, "name": "b", "format": "wide", "if_exists": "ask"}),
        lambda: place.train(**continued),
    ):
        with pytest.raises(TrainingProError, match=r"larger than 4 MB|not a preset file"):
            read()
    assert [entry.note for entry in inventory.list_entries(folders)] == [""]
