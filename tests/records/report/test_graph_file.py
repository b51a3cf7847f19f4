"""Evaluations and steps in a graph: written, read back, and the best of them."""

import json
import math

import pytest
from training_pro.core.files import dump_json
from training_pro.core.jobs import EvaluationDone, Step
from training_pro.records.report import best_evaluation, graph_entry, read_evaluations, read_steps


def evaluation(step, loss, accuracy=0.5, **more):
    figures = {"perplexity": math.exp(loss), "tokens": 9, "seconds": 0.5, "at": 0.0, "why": "planned"}
    return EvaluationDone(step=step, epoch=step / 4, loss=loss, accuracy=accuracy, **figures, **more)


def test_a_step_and_an_evaluation_are_written_with_their_keys_and_read_back():
    losses = {"loss": 2.5, "smoothed": 2.75, "by_source": {"a": 2.0}, "phase": "by length"}
    step = Step(
        at=0.0, step=3, epoch=0.75, learning_rate=1e-4, gradient_norm=0.5, tokens=99, seconds=0.125, **losses
    )
    entry = graph_entry(step)
    keys = "current_steps loss smoothed_loss learning_rate epoch gradient_norm tokens seconds loss_by_source phase"
    assert list(entry) == keys.split() and read_steps([entry]) == [step]
    done = evaluation(4, 2.0, by_source={"a": 1.5}, context_gain=0.1, validation_key="mark")
    written = dump_json([graph_entry(done), graph_entry(evaluation(8, math.nan))])
    graph = json.loads(written, parse_constant=pytest.fail)
    first, second = read_evaluations(graph)
    assert first == done and math.isnan(second.loss)
    (old,) = read_steps([{"current_steps": 3, "loss": None}, {"current_steps": 3, "eval_loss": 2.0}])  # fewer keys
    assert (old.step, old.epoch, old.learning_rate, old.tokens, old.seconds) == (3, 0, 0, 0, 0)
    assert math.isnan(old.loss) and math.isnan(old.smoothed)


def test_the_best_evaluation_is_the_first_of_equals():
    figures = ((0, 3.0, 0.1), (4, 1.0, 0.6), (8, 1.0, 0.7), (9, math.nan, 0.9), (12, 2.0, 0.7))
    evaluations = [evaluation(*row) for row in figures]
    assert best_evaluation(evaluations).step == 4
    assert best_evaluation([evaluation(1, math.nan)]) is best_evaluation([]) is None
