"""logs/evaluations.csv: the webui's columns, and what others wrote."""

import csv

import pytest
from training_pro.core import evaluations_table
from training_pro.core.errors import SavingError

EvaluationRow, add_row = evaluations_table.EvaluationRow, evaluations_table.add_row


def rows(logs):
    with (logs / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


def test_the_columns_are_those_of_the_webui_and_numbers_stay_numbers(tmp_path):
    for _ in range(2):  # earlier rows are written again with each
        add_row(EvaluationRow("tiny", "", "-5", -12.5, -1, 32, "+3", 'said "so"'), tmp_path / "logs")
    first, second = rows(tmp_path / "logs")
    assert ",".join(first) == "Model,LoRAs,Dataset,Perplexity,stride,max_length,Date,Comment"
    assert list(first.values()) == ["tiny", "-", "-5", "-12.5", "-1", "32", "+3", 'said "so"'] and first == second
    assert [path.name for path in (tmp_path / "logs").iterdir()] == ["evaluations.csv"]


def test_what_others_wrote_stays_and_what_is_no_table_is_left_alone(tmp_path):
    file, row = tmp_path / "evaluations.csv", EvaluationRow("tiny", "a", "d", 1.5, 16, 32, "2026-11-21")
    file.write_text("Model,Mine\nold,x\n", encoding="utf-8")
    add_row(row, tmp_path)
    old, new = rows(tmp_path)
    assert (old["Model"], old["Mine"], old["Comment"], new["Mine"], new["Model"]) == ("old", "x", "", "", "tiny")
    file.write_text("a\n1,2,3\n", encoding="utf-8")
    with pytest.raises(SavingError, match="more cells than columns"):
        add_row(row, tmp_path)
    assert file.read_text(encoding="utf-8") == "a\n1,2,3\n"
