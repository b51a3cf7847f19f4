"""logs/evaluations.csv: the webui's columns, and nothing that a spreadsheet would work out."""

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


@pytest.mark.parametrize("text", ['=cmd|"/c calc"!A1', "+1+1", "-1+1", "@SUM(A1)", "\t=1", "\r=1", "'"])
def test_a_formula_is_written_as_a_text_and_read_as_it_was(tmp_path, text):
    for _ in range(3):
        add_row(EvaluationRow(text, text, text, 1.5, 256, 512, "2026-01-01", text), tmp_path)
    for written in rows(tmp_path):
        for name in ("Model", "LoRAs", "Dataset", "Comment"):
            assert not written[name].startswith(("=", "+", "-", "@", "\t", "\r"))
    assert {read["Model"] for read in evaluations_table.read_rows(tmp_path)} == {text.replace("\r", " ")}
