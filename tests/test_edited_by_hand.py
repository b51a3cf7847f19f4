"""What a user may edit by hand is read as Notepad and Excel save it on Windows: with a mark at its beginning."""

from __future__ import annotations

import codecs
import json

import pytest
from training_pro.core.evaluations_table import Row, add, rows
from training_pro.core.files.atomic_files import read_json
from training_pro.data.rows import prompt_formats, text_quality
from training_pro.records.folder import loras, notes
from training_pro.records.folder.filenames import LOG, NOTES
from training_pro.records.queue import queue
from training_pro.records.queue.queue import Queue
from training_pro.settings import files, presets
from training_pro.tests.fakes import made_folders


def evaluations(folder):
    add(Row("m", "l", "d", 1.0, 1, 1, "now"), folder)
    marked(folder / "evaluations.csv")
    return [row["Model"] for row in rows(folder)]


def waiting(folder):
    queue.save(folder / "queue.json", Queue().with_one_more("a", "m", {}, 1))
    marked(folder / "queue.json")
    return queue.load(folder / "queue.json").waiting[0].name


def own_format(folder):
    folders = made_folders(folder)
    folders.formats.mkdir()
    return prompt_formats.texts("mine", written(folders.formats / "mine.json", {"a,b": "%a% %b%"}) and folders)


def refusals(folder):
    folders = made_folders(folder)
    written(folders.refusals, "no way")
    return text_quality.refusals(folders)


def marked(path):
    path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    return path


def written(path, what):
    path.write_text(what if isinstance(what, str) else json.dumps(what), encoding="utf-8")
    return marked(path)


RANK = {"rank": 16}
ROW = {"mine": {"values": RANK}}


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda at: presets.own(written(at / "mine.json", RANK).parent)[0].values, RANK),
        (lambda at: presets.table("loras", written(at / "loras.json", ROW).parent)[-1].values, RANK),
        (lambda at: presets.left_form(written(at / "form.json", RANK)), RANK),
        (lambda at: files.load(written(at / "a.json", RANK)).values["rank"], 16),
        (lambda at: notes.note(written(at / NOTES, "the good one").parent), "the good one"),
        (lambda at: read_json(written(at / "training_prompt.json", {"kind": "chat"}), {}), {"kind": "chat"}),
        (lambda at: loras.standing(written(at / LOG, {"ended": "finished"}).parent), "finished"),
        (waiting, "a"),
        (evaluations, ["m"]),
        (own_format, {"a,b": "%a% %b%"}),
        (refusals, ("no way",)),
    ],
)
def test_with_a_mark_before_the_first_letter(tmp_path, read, found):
    assert read(tmp_path) == found


def wide(path, what):
    """As PowerShell writes what goes into a file by >, and Notepad what it calls Unicode."""
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(json.dumps(what, indent=2).encode("utf-16"))
    return path


def own_wide_format(folder):
    folders = made_folders(folder)
    wide(folders.formats / "mine.json", {"a,b": "%a% %b%"})
    return prompt_formats.texts("mine", folders)


@pytest.mark.parametrize(
    ("read", "found"),
    [
        (lambda at: presets.own(wide(at / "mine.json", RANK).parent)[0].values, RANK),
        (lambda at: presets.table("loras", wide(at / "loras.json", ROW).parent)[-1].values, RANK),
        (lambda at: files.load(wide(at / "a.json", RANK)).values["rank"], 16),
        (own_wide_format, {"a,b": "%a% %b%"}),
    ],
)
def test_in_two_bytes_a_letter(tmp_path, read, found):
    assert read(tmp_path) == found
