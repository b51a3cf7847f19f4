"""Files that a user may edit by hand are read with a byte order mark, as Notepad and Excel on Windows write it."""

from __future__ import annotations

import codecs
import json

import pytest
from training_pro.core.evaluations_table import EvaluationRow, add_row, read_rows
from training_pro.core.files import read_json
from training_pro.data.rows import prompt_formats, text_quality
from training_pro.records.folder import loras, run_files
from training_pro.records.folder.filenames import LOG, NOTES
from training_pro.records.queue import Queue, queue
from training_pro.settings import files, presets
from training_pro.tests.fakes import make_folders


def evaluated_models(folder):
    add_row(EvaluationRow("m", "l", "d", 1.0, 1, 1, "now"), folder)
    add_bom(folder / "evaluations.csv")
    return [row["Model"] for row in read_rows(folder)]


def queued_name(folder):
    queue.save(folder / "queue.json", Queue().with_run("a", "m", {}, 1))
    add_bom(folder / "queue.json")
    return queue.load(folder / "queue.json").waiting[0].name


def custom_format(folder):
    folders = make_folders(folder)
    folders.formats.mkdir()
    return prompt_formats.load_templates(
        "mine", write_with_bom(folders.formats / "mine.json", {"a,b": "%a% %b%"}) and folders
    )


def refusals(folder):
    folders = make_folders(folder)
    write_with_bom(folders.refusal_phrases, "no way")
    return text_quality.load_refusal_phrases(folders)


def add_bom(path):
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    return path


def write_with_bom(path, content):
    path.write_text(content if isinstance(content, str) else json.dumps(content), encoding="utf-8")
    return add_bom(path)


RANK = {"rank": 16}
ROW = {"mine": {"values": RANK}}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda at: presets.find_preset("mine", write_with_bom(at / "mine.json", RANK).parent).values, RANK),
        (lambda at: presets.load_table("loras", write_with_bom(at / "loras.json", ROW).parent)[-1].values, RANK),
        (lambda at: presets.load_form(write_with_bom(at / "form.json", RANK)), RANK),
        (lambda at: files.load_settings(write_with_bom(at / "a.json", RANK)).values["rank"], 16),
        (lambda at: run_files.read_note(write_with_bom(at / NOTES, "the good one").parent), "the good one"),
        (
            lambda at: read_json(write_with_bom(at / "training_prompt.json", {"kind": "chat"}), {}),
            {"kind": "chat"},
        ),
        (lambda at: loras.run_status(write_with_bom(at / LOG, {"ended": "finished"}).parent), "finished"),
        (queued_name, "a"),
        (evaluated_models, ["m"]),
        (custom_format, {"a,b": "%a% %b%"}),
        (refusals, ("no way",)),
    ],
)
def test_with_a_byte_order_mark(tmp_path, read, found):
    assert read(tmp_path) == found


def write_utf16(path, content):
    """Write UTF-16, as PowerShell does with > and Notepad with the encoding Unicode."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(content, indent=2).encode("utf-16"))
    return path


def custom_utf16_format(folder):
    folders = make_folders(folder)
    write_utf16(folders.formats / "mine.json", {"a,b": "%a% %b%"})
    return prompt_formats.load_templates("mine", folders)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda at: presets.find_preset("mine", write_utf16(at / "mine.json", RANK).parent).values, RANK),
        (lambda at: presets.load_table("loras", write_utf16(at / "loras.json", ROW).parent)[-1].values, RANK),
        (lambda at: files.load_settings(write_utf16(at / "a.json", RANK)).values["rank"], 16),
        (custom_utf16_format, {"a,b": "%a% %b%"}),
    ],
)
def test_in_utf_16(tmp_path, read, found):
    assert read(tmp_path) == found
