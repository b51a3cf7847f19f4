"""Files that a user may edit by hand, in the encodings of Notepad and Excel (a byte order mark) and PowerShell."""

import codecs
import json

import pytest
from training_pro.core import evaluations_table
from training_pro.data.rows import prompt_formats, text_quality
from training_pro.records import queue
from training_pro.records.folder import LOG, loras, run_files
from training_pro.records.queue import Queue
from training_pro.settings import files, presets
from training_pro.tests.fakes import make_folders

RANK, TEMPLATES = {"rank": 16}, {"a,b": "%a% %b%"}


@pytest.mark.parametrize("encoding", ["utf-8-sig", "utf-16"])
def test_settings_presets_and_formats(tmp_path, encoding):
    folders = make_folders(tmp_path)
    for name, content in (("mine", RANK), ("loras", {"mine": {"values": RANK}}), ("formats/mine", TEMPLATES)):
        path = folders.formats.parent / f"{name}.json"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(json.dumps(content, indent=2).encode(encoding))
    training = folders.formats.parent
    assert presets.find_preset("mine", training).values == RANK
    assert presets.load_table("loras", training)[-1].values == RANK
    assert files.load_settings(training / "mine.json").values["rank"] == 16
    assert prompt_formats.load_templates("mine", folders) == TEMPLATES


def test_records_with_a_byte_order_mark(tmp_path):
    folders = make_folders(tmp_path)
    queue.save(tmp_path / "queue.json", Queue().with_run("a", "m", {}, 1))
    evaluations_table.add_row(evaluations_table.EvaluationRow("m", "l", "d", 1.0, 1, 1, "now"), tmp_path)
    (tmp_path / run_files.NOTES).write_text("the good one")
    (tmp_path / LOG).write_text('{"ended": "finished"}')
    (tmp_path / "form.json").write_text(json.dumps(RANK))
    folders.refusal_phrases.write_text("no way")
    for path in (*tmp_path.glob("*.*"), folders.refusal_phrases):
        path.write_bytes(codecs.BOM_UTF8 + path.read_bytes())
    assert queue.load(tmp_path / "queue.json").waiting[0].name == "a"
    assert [row["Model"] for row in evaluations_table.read_rows(tmp_path)] == ["m"]
    assert run_files.read_note(tmp_path) == "the good one"
    assert loras.run_status(tmp_path) == "finished"
    assert presets.load_form(tmp_path / "form.json") == RANK
    assert text_quality.load_refusal_phrases(folders) == ("no way",)
