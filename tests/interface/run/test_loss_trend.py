"""The trend of the loss, in one sentence."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_pro.interface.run.run_view import describe_trend, step_before
from training_pro.records.report.graph_file import read_steps


def points(*smoothed, loss=None):
    entries = (
        {"current_steps": n, "loss": loss or s, "smoothed_loss": s} for n, s in enumerate(smoothed, start=1)
    )
    return [replace(step, at=100.0 * step.step) for step in read_steps(entries)]


@pytest.mark.parametrize(
    ("smoothed", "steps", "sentence"),
    [
        ([3.0, 2.9], 100, "too early to judge"),
        ([3.0, 2.9, 2.8, 2.7, 2.6], 100, "falling, as expected at the start"),
        ([3.0, 2.9, 2.8, 2.7, 2.6, 2.5], 6, "falling: the model is learning"),
        ([2.0] * 9, 9, "about the same as 4 steps ago"),
        ([2.0, 1.99, 1.985, 1.98, 1.97], 100, "falling, as expected at the start"),  # a curve that visibly falls
        ([2.0, 2.1, 2.2, 2.3, 2.4, 2.5], 6, "is rising. If this continues"),
        ([2.0, 2.1, 2.2, 2.3, 2.4], 100, "can happen in the first steps"),
        ([0.6, 0.5, 0.45, 0.4, 0.3], 10, "memorizing the text"),
    ],
)
def test_each_trend_has_its_sentence(smoothed, steps, sentence):
    assert sentence in describe_trend(points(*smoothed), steps)


def test_a_lucky_first_step_does_not_make_a_falling_loss_rise():
    history = points(3.6, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.6)
    steps = [replace(step, smoothed=3.6 + step.step / 100) for step in history]
    assert "too early to judge" in describe_trend(steps, 100)
    longer = points(3.6, 4.1, 4.0, 3.9, 3.9, 3.8, 3.7, 3.6, 3.6, 3.5, 3.5, 3.4)
    rising = [replace(step, smoothed=3.6 + step.step / 100) for step in longer]
    assert "falling, as expected at the start" in describe_trend(rising, 100)


def test_a_change_that_may_be_chance_is_not_judged():
    for losses in ((3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66), (2.0,) * 9):
        assert "too early to judge" in describe_trend(points(*losses), 100)
    assert "too early to judge" in describe_trend(
        points(3.70, 4.09, 3.96, 3.92, 3.83, 3.62, 4.00, 3.66, 3.51), 100
    )


def test_a_loss_that_is_not_finite_is_reported_first():
    assert "NaN or infinite" in describe_trend(points(1.0, 1.0, loss=float("nan")), 10)
    assert describe_trend([], 10) == ""


def test_the_step_of_an_hour_ago():
    history = points(*[3.0 - n / 100 for n in range(50)])
    assert step_before(history, 3600, history[-1].at).step == 14
    assert step_before(history, 3600, 100.0) is None
