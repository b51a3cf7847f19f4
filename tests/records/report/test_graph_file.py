"""Evaluations in a graph: written and read back, the best of them, and how many there were since."""

from __future__ import annotations

import json
import math
from dataclasses import replace

import pytest
from training_pro.core.files.atomic_files import write_json
from training_pro.core.jobs.events import Evaluated
from training_pro.records.report.graph_file import best_of, entry, evaluations_of, steps_of


def one(step, loss, accuracy=0.5, why="planned", **more):
    return Evaluated(
        at=0.0, step=step, epoch=step / 4, why=why, loss=loss, perplexity=math.exp(loss), accuracy=accuracy,
        tokens=9, seconds=0.5, **more,
    )  # fmt: skip


def run(*losses):
    return [one(n, loss) for n, loss in enumerate(losses)]


def test_written_and_read_back(tmp_path):
    known = [
        one(4, 2.0, by_source={"a": 1.5, "b": 2.5}, context_gain=0.1),
        one(8, math.nan),
    ]
    graph = [{"current_steps": 4, "loss": 3.0}, *(entry(e, "mark") for e in known)]
    write_json(tmp_path / "graph.json", graph)
    back = json.loads((tmp_path / "graph.json").read_text(), parse_constant=pytest.fail)
    first, second = evaluations_of(back)
    assert replace(first, at=0.0) == known[0]
    assert math.isnan(second.loss)
    assert steps_of(back) == [back[0]]
    assert evaluations_of(graph, "mark") and evaluations_of(graph, "another") == []


def test_the_best_by_loss_or_by_accuracy_is_the_first_of_equals():
    found = [one(0, 3.0, 0.1), one(4, 1.0, 0.6), one(8, 1.0, 0.7), one(9, math.nan, 0.9), one(12, 2.0, 0.7)]
    assert (best_of(found).step, best_of(found, "accuracy").step) == (4, 8)
    assert best_of([one(1, math.nan)]) is None
    assert best_of([]) is None
