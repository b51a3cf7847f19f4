"""What the guides say of learning curves: the verdict on them, their axes, and what is measured for them."""

from __future__ import annotations

import pytest
from training_pro.core.jobs import EvaluationDone, Step
from training_pro.interface.run import charts
from training_pro.records.report import judge_run, read_steps
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_log
from training_pro.tests.seeds.conftest import run_events


def verdict(losses):
    """The verdict on a run of forty steps with these losses."""
    entries = [{"current_steps": n, "loss": losses(n), "smoothed_loss": losses(n)} for n in range(1, 41)]
    return judge_run(read_steps(entries), [], {}).text


def test_wild_fluctuations_of_the_loss_are_a_sign_of_a_too_high_rate():
    assert "lower the learning rate" in verdict(lambda n: 4.0 if n % 2 else 0.9)
    assert "learning rate" not in verdict(lambda n: 3 - n / 40)


def test_a_performance_metric_has_a_curve_of_the_validation_split_alone():
    figures = {"why": "planned", "perplexity": 1.0, "accuracy": 0.5, "tokens": 9, "seconds": 1.0}
    evaluations = [EvaluationDone(step=n, epoch=1.0, loss=2.0, **figures) for n in (4, 8, 12)]
    title = "Validation: tokens predicted correctly (%)"
    assert title in charts.run_charts([], evaluations, []) and title not in charts.run_charts([], [], [])
    assert "the accuracy on the validation split" in read_page("curve of the training accuracy")


@pytest.mark.long
def test_a_run_stops_by_a_lack_of_change_and_a_too_small_rate_makes_no_progress(place):
    asked = {"early_stopping": 2, "eval_every": 1, "eval_share": 0.2, "learning_rate": 1e-9, "epochs": 20}
    events = run_events(place, dropout=0.1, weight_decay=0.01, schedule="cosine", kind=Step, **asked)
    assert max(event.step for event in events) < 10
    judged = read_log(place)["verdict"]
    assert judged["kind"] == "did not learn" and "higher learning rate may help" in judged["text"]
