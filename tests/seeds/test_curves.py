"""What the guides say of learning curves: the verdict on them, their axes, and what is measured for them."""

from __future__ import annotations

import re

import pytest
from training_pro.core.jobs import EvaluationDone, Step
from training_pro.interface.run import charts
from training_pro.records.report import graph_entry, judge_run
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.architectures import read_graph, read_log
from training_pro.tests.seeds.conftest import run_events

STEPS = range(1, 17)
STABLE = {step: 1.5 + 1.5 * 0.6**step for step in STEPS}


def evaluation(step, loss, accuracy=0.5):
    return EvaluationDone(
        step=step, epoch=1.0, why="planned", loss=loss, validation_key="mark", perplexity=1.0, accuracy=accuracy,
        tokens=9, seconds=1.0,
    )  # fmt: skip


def verdict(training, validation):
    entries = [graph_entry(evaluation(step, loss)) for step, loss in validation.items()]
    entries += [{"current_steps": step, "loss": s, "smoothed_loss": s} for step, s in training.items()]
    return judge_run(sorted(entries, key=lambda entry: entry["current_steps"]), {})


def test_the_gap_of_a_good_fit_is_stated_and_not_judged():
    for gap in (0.05, 2.0):
        judged = verdict(STABLE, {step: gap + loss for step, loss in STABLE.items() if step % 4 == 0})
        stated = float(judged.text.partition("The generalization gap is ")[2].split()[0])
        assert judged.kind == "about right" and stated == pytest.approx(gap, abs=0.001)
    assert "does not judge it" in read_page("minimal gap of a good fit")


def test_wild_fluctuations_of_the_loss_are_a_sign_of_a_too_high_rate():
    assert "lower the learning rate" in verdict({n: 4.0 if n % 2 else 0.9 for n in range(1, 41)}, {}).text
    assert "learning rate" not in verdict({n: 3 - n / 40 for n in range(1, 41)}, {}).text


@pytest.mark.long
def test_dual_learning_curves_of_the_loss_and_of_a_performance_metric(place, batches):
    """Over epochs on the x-axis; of the validation split, which is not trained on, also the accuracy."""
    events = run_events(place, eval_share=0.25, eval_every=1, epochs=3)
    graph, report = read_graph(place), (place.lora() / "report.html").read_text(encoding="utf-8")
    epochs = [entry["epoch"] for entry in graph if "loss" in entry]
    evaluated = [entry for entry in graph if "eval_loss" in entry]
    assert len(epochs) >= 6 and epochs == sorted(epochs) and len(evaluated) >= 3
    assert all(0 <= entry["eval_accuracy"] <= 1 for entry in evaluated)
    assert 0 < len({number for batch in batches for number in batch}) < 16
    (axis,) = re.findall(r'<g class="tp-by-epoch">(.*?)</g>', report)[:1]
    assert {"1", "2", "3"} <= set(re.findall(r">([0-9.]+)<", axis))
    assert all(re.search(rf'<polyline [^>]*class="{kind}"', report) for kind in ("tp-loss", "tp-kept"))
    evaluations = [event for event in events if isinstance(event, EvaluationDone)]
    title = "Validation: tokens predicted correctly (%)"
    assert title in charts.run_charts([], evaluations, []) and title not in charts.run_charts([], [], [])
    assert not hasattr(Step, "accuracy"), "training data have loss and recall instead"
    assert "the accuracy on the validation split" in read_page("curve of the training accuracy")


@pytest.mark.long
def test_a_run_stops_by_a_lack_of_change_and_a_too_small_rate_makes_no_progress(place):
    asked = {"early_stopping": 2, "eval_every": 1, "eval_share": 0.2, "learning_rate": 1e-9, "epochs": 20}
    events = run_events(place, dropout=0.1, weight_decay=0.01, schedule="cosine", kind=Step, **asked)
    assert max(event.step for event in events) < 10
    judged = read_log(place)["verdict"]
    assert judged["kind"] == "did not learn" and "higher learning rate may help" in judged["text"]
