"""logs/evaluations.csv: the webui's columns, and nothing of what others wrote is lost."""

from __future__ import annotations

import csv

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.evaluations_table import COLUMNS, EvaluationRow, add_row

ROW = EvaluationRow("tiny", "a, b", "story.txt", 12.5, 16, 32, "2026-11-21 12:00:00", 'said "so"')


def rows(logs):
    with (logs / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_columns_are_those_of_the_webui(tmp_path):
    add_row(ROW, tmp_path / "logs")
    add_row(ROW, tmp_path / "logs")
    head = (tmp_path / "logs" / "evaluations.csv").read_text(encoding="utf-8").splitlines()[0]
    assert head == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    first, second = rows(tmp_path / "logs")
    assert first == second
    assert list(first.values()) == [
        *("tiny", "a, b", "story.txt", "12.5", "16", "32", "2026-11-21 12:00:00", 'said "so"'),
    ]
    assert list((tmp_path / "logs").iterdir()) == [tmp_path / "logs" / "evaluations.csv"]


def test_what_others_wrote_stays(tmp_path):
    (tmp_path / "evaluations.csv").write_text("Model,Mine\nold,x\n", encoding="utf-8")
    add_row(ROW, tmp_path)
    old, new = rows(tmp_path)
    assert (old["Model"], old["Mine"], old["Comment"]) == ("old", "x", "")
    assert (new["Mine"], new["Model"]) == ("", "tiny")
    assert set(COLUMNS) < set(new)


def test_what_is_no_table_is_left_alone(tmp_path):
    (tmp_path / "evaluations.csv").write_text("a\n1,2,3\n", encoding="utf-8")
    with pytest.raises(SavingError, match="more cells than columns"):
        add_row(ROW, tmp_path)
    assert (tmp_path / "evaluations.csv").read_text(encoding="utf-8") == "a\n1,2,3\n"
