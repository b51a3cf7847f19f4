"""Evaluations in a graph: written, read back, and the best of them."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from training_pro.core.files.atomic_files import write_json
from training_pro.core.jobs.events import EvaluationDone
from training_pro.records.report.graph_file import (
    best_evaluation,
    evaluation_entry,
    read_evaluations,
    step_entries,
)


def evaluation(step, loss, accuracy=0.5, why="planned", **more):
    return EvaluationDone(
        at=0.0, step=step, epoch=step / 4, why=why, loss=loss, perplexity=math.exp(loss), accuracy=accuracy,
        tokens=9, seconds=0.5, **more,
    )  # fmt: skip


def test_written_and_read_back(tmp_path):
    evaluations = [
        evaluation(4, 2.0, by_source={"a": 1.5, "b": 2.5}, context_gain=0.1),
        evaluation(8, math.nan),
    ]
    graph = [{"current_steps": 4, "loss": 3.0}, *(evaluation_entry(e, "mark") for e in evaluations)]
    write_json(tmp_path / "graph.json", graph)
    loaded = json.loads((tmp_path / "graph.json").read_text(), parse_constant=pytest.fail)
    first, second = read_evaluations(loaded)
    assert replace(first, at=0.0) == evaluations[0]
    assert math.isnan(second.loss)
    assert step_entries(loaded) == [loaded[0]]
    assert read_evaluations(graph, "mark") and read_evaluations(graph, "another") == []


def test_the_best_by_loss_or_by_accuracy_is_the_first_of_equals():
    evaluations = [
        evaluation(0, 3.0, 0.1),
        evaluation(4, 1.0, 0.6),
        evaluation(8, 1.0, 0.7),
        evaluation(9, math.nan, 0.9),
        evaluation(12, 2.0, 0.7),
    ]
    assert (best_evaluation(evaluations).step, best_evaluation(evaluations, "accuracy").step) == (4, 8)
    assert best_evaluation([evaluation(1, math.nan)]) is None
    assert best_evaluation([]) is None
