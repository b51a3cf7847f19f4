"""Characters that only Python takes for line breaks: text with them is written and read back unchanged."""

from __future__ import annotations

import csv
import json

import pytest
from training_pro.core.jobs import SampleGenerated
from training_pro.data.readers import row_files
from training_pro.records.folder import copy_as_lora, run_files
from training_pro.settings import columns
from training_pro.tests.fakes import make_folders
from training_pro.tests.records.on_disk import checkpoint, write_files

STRANGE = "a\u2028b\u2029c\x85d\x0be\x0cf\x1cg\x1dh\x1ei"
SAMPLES = [SampleGenerated(step=step, prompt=STRANGE, text=STRANGE, without=STRANGE) for step in (1, 2)]


def samples_of_a_promoted_checkpoint(folder):
    folders = make_folders(folder)
    run = write_files(folders.loras, "run", checkpoint("checkpoint-2", 2))
    run_files.write_samples(run, SAMPLES)
    lora = copy_as_lora(run / "checkpoint-2", "own", folders)
    assert run_files.read_samples(run) == run_files.read_samples(lora) == SAMPLES
    return SAMPLES[0].text


def row(folder, name):
    (only,) = row_files.read_table(folder / name, name, columns.Columns()).rows()
    return only.columns["text"]


def jsonl_row(folder):
    (folder / "a.jsonl").write_text(json.dumps({"text": STRANGE}, ensure_ascii=False), encoding="utf-8")
    return row(folder, "a.jsonl")


def csv_row(folder):
    with (folder / "a.csv").open("w", encoding="utf-8", newline="") as file:
        csv.writer(file).writerows([["text", "more"], [STRANGE, 500 * "some words "]])
    return row(folder, "a.csv")


@pytest.mark.parametrize("read_back", [samples_of_a_promoted_checkpoint, jsonl_row, csv_row])
def test_every_character_of_a_text_is_read_back(tmp_path, read_back):
    assert read_back(tmp_path) == STRANGE
