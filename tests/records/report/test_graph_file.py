"""Evaluations and steps in a graph: written, read back, and the best of them."""

import json
import math

import pytest
from training_pro.core.files import write_json
from training_pro.core.jobs import EvaluationDone, Step
from training_pro.records.report import RunGraph, best_evaluation, graph_entry, read_evaluations, read_steps


def evaluation(step, loss, accuracy=0.5, **more):
    figures = {"perplexity": math.exp(loss), "tokens": 9, "seconds": 0.5, "at": 0.0, "why": "planned"}
    return EvaluationDone(step=step, epoch=step / 4, loss=loss, accuracy=accuracy, **figures, **more)


def test_written_and_read_back(tmp_path):
    more = {"by_source": {"a": 1.5, "b": 2.5}, "context_gain": 0.1, "validation_key": "mark"}
    evaluations = [evaluation(4, 2.0, **more), evaluation(8, math.nan, validation_key="mark")]
    graph = [{"current_steps": 4, "loss": 3.0}, *map(graph_entry, evaluations)]
    write_json(tmp_path / "graph.json", graph)
    loaded = json.loads((tmp_path / "graph.json").read_text(), parse_constant=pytest.fail)
    first, second = read_evaluations(loaded)
    assert first == evaluations[0] and math.isnan(second.loss)
    assert [(step.step, step.loss, step.smoothed) for step in read_steps(loaded)] == [(4, 3.0, 3.0)]
    assert read_evaluations(graph, "mark") and read_evaluations(graph, "another") == []


def test_the_graph_of_a_run_in_progress_reads_like_the_list_that_is_written():
    earlier = [{"current_steps": 3, "loss": 3.0, "from_another_version": True}]
    graph, events = RunGraph(earlier), [evaluation(4, 2.0), evaluation(8, 1.5)]
    for event in events:
        graph.append(event)
    written = [*earlier, *map(graph_entry, events)]
    assert list(graph) == RunGraph(graph)[:] == written and len(graph) == 3
    assert graph[-1] == written[-1] and graph[1:] == written[1:] and graph[5:] == []


def test_a_step_is_written_with_its_keys_and_read_back():
    losses = {"loss": 2.5, "smoothed": 2.75, "by_source": {"a": 2.0}, "phase": "by length"}
    step = Step(
        at=0.0, step=3, epoch=0.75, learning_rate=1e-4, gradient_norm=0.5, tokens=99, seconds=0.125, **losses
    )
    entry = graph_entry(step)
    keys = "current_steps loss smoothed_loss learning_rate epoch gradient_norm tokens seconds loss_by_source phase"
    assert list(entry) == keys.split() and read_steps([entry]) == [step]
    (old,) = read_steps([{"current_steps": 3, "loss": None}, {"current_steps": 3, "eval_loss": 2.0}])  # fewer keys
    assert (old.step, old.epoch, old.learning_rate, old.tokens, old.seconds) == (3, 0, 0, 0, 0)
    assert math.isnan(old.loss) and math.isnan(old.smoothed)


def test_the_best_by_loss_or_by_accuracy_is_the_first_of_equals():
    figures = ((0, 3.0, 0.1), (4, 1.0, 0.6), (8, 1.0, 0.7), (9, math.nan, 0.9), (12, 2.0, 0.7))
    evaluations = [evaluation(*row) for row in figures]
    assert (best_evaluation(evaluations).step, best_evaluation(evaluations, "accuracy").step) == (4, 8)
    assert best_evaluation([evaluation(1, math.nan)]) is best_evaluation([]) is None
