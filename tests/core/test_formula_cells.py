"""Cells of our tables that a spreadsheet would work out as formulas are texts there."""

from __future__ import annotations

import csv

import pytest
from training_pro.core import evaluations_table
from training_pro.core.evaluations_table import EvaluationRow

FORMULAS = [
    "=1+1",
    '=cmd|"/c calc"!A1',
    "+1+1",
    "-1+1",
    "@SUM(A1)",
    "\t=1",
    "\r=1",
    "- x",
    "-",
    "'=1",
    "'",
    "=",
    "+1e5x",
]


def cells(folder):
    with (folder / "evaluations.csv").open(encoding="utf-8", newline="") as file:
        return list(csv.DictReader(file))


@pytest.mark.parametrize("text", FORMULAS)
def test_a_formula_is_written_as_a_text_and_read_as_it_was(tmp_path, text):
    row = EvaluationRow(text, text, text, 1.5, 256, 512, "2026-01-01", text)
    for _ in range(3):  # earlier rows are written again with each
        evaluations_table.add_row(row, tmp_path)
    for written in cells(tmp_path):
        for name in ("Model", "LoRAs", "Dataset", "Comment"):
            assert written[name] == "-" or not written[name].startswith(("=", "+", "-", "@", "\t", "\r"))
    if text != "'=1":  # one that was written as a text already
        assert {read["Model"] for read in evaluations_table.read_rows(tmp_path)} == {text.replace("\r", " ")}


def test_numbers_stay_numbers(tmp_path):
    evaluations_table.add_row(EvaluationRow("m", "", "-5", -1.25, -1, 512, "+3", ""), tmp_path)
    evaluations_table.add_row(EvaluationRow("m", "", "-5", -1.25, -1, 512, "+3", ""), tmp_path)
    for written in cells(tmp_path):
        assert (written["Dataset"], written["Perplexity"], written["stride"], written["Date"]) == (
            "-5",
            "-1.25",
            "-1",
            "+3",
        )
        assert written["LoRAs"] == "-"
