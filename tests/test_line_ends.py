"""Characters that only Python takes for line breaks: text with them is written and read back unchanged."""

from __future__ import annotations

import csv
import json

import pytest
from training_pro.core.evaluations_table import EvaluationRow, add_row, read_rows
from training_pro.core.jobs import SampleGenerated
from training_pro.data.readers.csv_rows import read_table
from training_pro.data.readers.json_rows import read_jsonl
from training_pro.interface.base.form import display_value
from training_pro.records.folder import copy_as_lora, run_files
from training_pro.records.queue import Queue, queue
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import checkpoint, write_files

STRANGE = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"
SAMPLE_LIST = [SampleGenerated(step=step, prompt=STRANGE, text=STRANGE, without=STRANGE) for step in (1, 2)]


def sample_text(folder):
    run_files.write_samples(folder, SAMPLE_LIST)
    assert run_files.read_samples(folder) == SAMPLE_LIST
    return SAMPLE_LIST[0].text


def sample_text_of_a_promoted_checkpoint(folder):
    folders = make_folders(folder)
    run = write_files(folders.loras, "run", checkpoint("checkpoint-2", 2))
    run_files.write_samples(run, SAMPLE_LIST)
    assert run_files.read_samples(copy_as_lora(run / "checkpoint-2", "own", folders)) == SAMPLE_LIST
    return SAMPLE_LIST[0].text


def prompt_in_the_form(folder):
    setting = SETTINGS["sample_prompts"]
    (read,) = setting.read(display_value(setting, (STRANGE,)))
    return read


def jsonl_row(folder):
    line = json.dumps({"text": STRANGE}, ensure_ascii=False)
    (folder / "a.jsonl").write_text(f"{line}\n{line}\n", encoding="utf-8")
    first, second = read_jsonl(folder / "a.jsonl", "a.jsonl").rows()
    assert first.columns == second.columns
    return first.columns["text"]


def csv_row(folder):
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "more"], [STRANGE, 500 * "some words "]])
    (row,) = read_table(folder / "a.csv", "a.csv").rows()
    return row.columns["text"]


def evaluation_comment(folder):
    for _ in range(2):  # the second call reads the first row
        add_row(EvaluationRow("m", "l", "d", 1.0, 1, 1, "now", STRANGE), folder)
    first, second = read_rows(folder)
    assert first == second
    return first["Comment"]


def queued_settings(folder):
    queue.save(folder / "queue.json", Queue().with_run("a", "m", {"sample_prompts": [STRANGE]}, 1))
    (waiting,) = queue.load(folder / "queue.json").waiting
    return waiting.values["sample_prompts"][0]


def note_text(folder):
    run_files.write_note(folder, STRANGE)
    return run_files.read_note(folder)


@pytest.mark.parametrize(
    "read_back",
    [
        sample_text,
        sample_text_of_a_promoted_checkpoint,
        prompt_in_the_form,
        jsonl_row,
        csv_row,
        evaluation_comment,
        queued_settings,
        note_text,
    ],
)
def test_every_character_of_a_text_is_read_back(tmp_path, read_back):
    assert read_back(tmp_path) == STRANGE
