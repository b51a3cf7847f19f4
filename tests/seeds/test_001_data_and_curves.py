"""The novice's training guide on datasets, splits, batches and learning curves: what a run does with each."""

from __future__ import annotations

import json
import re
from dataclasses import fields

import pytest
from training_pro.core.engine import PreviewQuery
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import EvaluationDone, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.run import charts
from training_pro.records.report import graph_entry, judge_run
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.train_utils import StepPlan

PAGE = """<!DOCTYPE html><html><head><title>Example HTML Page</title></head><body>
<h1>Welcome to the Example Page</h1>
<p>This is a paragraph of text.</p>
<div class="content"><h2>Section 1</h2><p>This is the first section.</p></div>
<div class="content"><h2>Section 2</h2><p>This is the second section.</p></div>
</body></html>"""
SUPERVISED = [{"input": f"What is {n}?", "output": f"It is the number {n}."} for n in range(20)]
TEXTS = [{"text": f"This is the text number {n}."} for n in range(20)]
STEPS = range(1, 17)


def checked(place, name, content, **settings):
    place.write(name, content)
    return PeftEngine().check(
        place.settings(data=[name], cutoff="auto", **settings), place.host(), show=PreviewQuery(9)
    )


def shown(report):
    return "".join(piece.text for example in report.shown for piece in example.pieces)


def lines(rows):
    return "\n".join(map(json.dumps, rows))


def verdict(training, validation):
    events = [
        EvaluationDone(
            step=step, epoch=1.0, why="planned", loss=loss, validation_key="mark",
            perplexity=1.0, accuracy=0.5, tokens=9, seconds=1.0,
        )
        for step, loss in validation.items()
    ]  # fmt: skip
    entries = [{"current_steps": step, "loss": s, "smoothed_loss": s} for step, s in training.items()]
    return judge_run(sorted([*map(graph_entry, events), *entries], key=lambda e: e["current_steps"]), {})


def test_html_is_parsed_into_its_text(place):
    text = shown(checked(place, "page.html", PAGE))
    for words in ("Welcome to the Example Page", "This is a paragraph of text.", "This is the first section."):
        assert words in text
    assert "<p>" not in text


def test_a_column_of_a_csv_file_is_specified_by_its_name(place):
    table = "id,column_name\n" + "\n".join(f"{n},This is the text number {n}." for n in range(20))
    report = checked(place, "dataset.csv", table, columns="text=column_name")
    assert report.problems == () and report.as_json()["examples"] == 20
    assert "This is the text number 0." in shown(report)


def test_a_file_of_sql_statements_is_refused_with_what_to_do(place):
    (problem,) = checked(place, "dump.sql", "select * from foo; select * from bar;").problems
    assert "dump.sql" in problem and "import it into a database and save the database as .sqlite" in problem


def test_unsupervised_training_has_each_sequence_in_a_text_key(place):
    report = checked(place, "dataset.jsonl", lines(TEXTS))
    figures = report.as_json()
    assert report.problems == () and figures["examples"] == 20
    assert figures["trained_tokens"] > 0.8 * figures["tokens"], "everything is learned"


def test_supervised_training_has_input_output_objects(place):
    report = checked(place, "dataset.jsonl", lines(SUPERVISED))
    figures = report.as_json()
    assert report.problems == () and figures["examples"] == 20
    assert figures["trained_tokens"] < 0.8 * figures["tokens"], "only the output is learned"


@pytest.mark.parametrize(("per_cent", "kept"), [(1, 10), (0.1, 1), (0.01, 1)])
def test_a_validation_split_is_generated_automatically(place, per_cent, kept):
    rows = [{"text": f"This is the text number {n}."} for n in range(1000)]
    report = checked(place, "dataset.jsonl", lines(rows), eval_share=per_cent / 100)
    assert report.problems == () and report.as_json()["examples"] == 1000 - kept


@pytest.mark.parametrize(
    ("ratio", "part"), [("0.99,0.01", "0.01"), ("0.999, 0.001", "0.001"), ("0.8,0.2", "0.2"), ("99,1", "0.01")]
)
def test_a_split_ratio_is_refused_with_its_validation_part(ratio, part):
    with pytest.raises(SettingsError, match=rf"Enter only the validation part: {part}\."):
        training_settings({"name": "a", "data": ["a.txt"], "eval_share": ratio})
    assert "the validation part alone: 0.01" in read_page("split_ratio 0.99,0.01")


def test_the_training_part_of_a_split_ratio_would_train_on_the_rest(place):
    """0.99 is allowed, but it is the validation part: Check says what is left and what was probably meant."""
    rows = lines([{"text": f"This is the text number {n}."} for n in range(1000)])
    wrong, right = (checked(place, "dataset.jsonl", rows, eval_share=share) for share in (0.99, 0.01))
    assert (wrong.as_json()["examples"], right.as_json()["examples"]) == (10, 990)
    (advice,) = [text for text in wrong.advice if text.startswith("Validation split")]
    assert "trains on only 1% of the dataset" in advice and advice.endswith("enter 0.01.")
    assert not any(text.startswith("Validation split") for text in right.advice)


def test_the_batch_size_is_one_or_more_and_a_number_of_epochs_is_specified():
    for key in ("batch_size", "epochs"):
        with pytest.raises(SettingsError, match=SETTINGS[key].label):
            training_settings({"name": "a", "data": ["a.txt"], key: 0})


def test_the_worked_example_has_40_batches_an_epoch_and_40000_updates_in_1000_epochs():
    plan = StepPlan(examples=200, batch_size=5, accumulation=1, epochs=1000)
    assert (plan.steps_per_epoch, plan.steps) == (40, 40_000)


def test_an_overfit_curve_decreases_on_the_training_data_and_rises_again_on_the_validation_data():
    training = {step: 3.0 - step / 10 for step in STEPS}
    judged = verdict(training, {0: 3.0, 4: 2.5, 8: 2.2, 12: 2.4, 16: 2.9})
    assert (judged.kind, judged.step) == ("began to memorize", 8)


def test_an_underfit_curve_is_flat():
    judged = verdict(dict.fromkeys(STEPS, 3.0), {0: 3.0, 8: 3.0, 16: 3.0})
    assert judged.kind == "did not learn"


def test_an_underfit_model_is_identified_from_the_curve_of_the_training_loss_only():
    judged = verdict(dict.fromkeys(STEPS, 3.0), {})
    assert judged.kind == "did not learn" and "(underfit)" in judged.text
    assert "(underfit)" not in verdict({step: 3.0 - step / 10 for step in STEPS}, {}).text


def test_an_underfit_curve_may_show_noisy_values_of_high_loss():
    """The values jump from step to step, and the smoothed loss stays where it was."""
    noisy = [{"current_steps": n, "loss": 9.0 if n % 2 else 1.0, "smoothed_loss": 5.0} for n in range(1, 61)]
    judged = judge_run(noisy, {})
    assert judged.kind == "did not learn" and "swings widely from step to step" in judged.text


def test_a_training_loss_that_decreases_until_the_end_is_not_trained_long_enough():
    training = {step: 3.0 - step / 10 for step in STEPS}
    judged = verdict(training, {0: 3.0, 4: 2.6, 8: 2.2, 12: 1.8, 16: 1.5})
    assert judged.kind == "could learn more"


def test_a_good_fit_decreases_to_a_point_of_stability():
    training = {step: 1.5 + 1.5 * 0.6**step for step in STEPS}
    validation = {step: 1.55 + 1.45 * 0.6**step for step in (0, 4, 8, 12, 16)}
    assert verdict(training, validation).kind == "about right"


def test_the_gap_of_a_good_fit_is_stated_and_not_judged():
    training = {step: 1.5 + 1.5 * 0.6**step for step in STEPS}
    for gap in (0.05, 2.0):
        judged = verdict(training, {step: gap + loss for step, loss in training.items() if step % 4 == 0})
        stated = float(judged.text.partition("The generalization gap is ")[2].split()[0])
        assert judged.kind == "about right" and stated == pytest.approx(gap, abs=0.001)
    assert "does not judge it" in read_page("minimal gap of a good fit")


@pytest.mark.parametrize(
    ("training", "validation", "word"),
    [
        (dict.fromkeys(STEPS, 3.0), {0: 3.0, 8: 3.0, 16: 3.0}, "underfit"),
        ({step: 3.0 - step / 10 for step in STEPS}, {0: 3.0, 4: 2.6, 8: 2.2, 12: 1.8, 16: 1.5}, "underfit"),
        ({step: 3.0 - step / 10 for step in STEPS}, {0: 3.0, 4: 2.5, 8: 2.2, 12: 2.4, 16: 2.9}, "overfit"),
        ({step: 1.5 + 1.5 * 0.6**step for step in STEPS}, {0: 3.0, 8: 1.56, 16: 1.55}, "well fit"),
    ],
)
def test_the_three_common_dynamics_have_the_names_of_the_guide(training, validation, word):
    judged = verdict(training, validation)
    assert f"({word})" in judged.text
    gap = validation[16] - (training[15] + training[16]) / 2
    assert f"The generalization gap is {gap:.4f} (" in judged.text


def test_the_plot_displays_epochs_on_the_x_axis_and_both_curves(place):
    place.train(eval_share=0.25, eval_every=1, epochs=3, sample_every="never")
    report = (place.lora() / "report.html").read_text(encoding="utf-8")
    (axis,) = re.findall(r'<g class="tp-by-epoch">(.*?)</g>', report)[:1]
    assert {"1", "2", "3"} <= set(re.findall(r">([0-9.]+)<", axis))
    assert all(re.search(rf'<polyline [^>]*class="{kind}"', report) for kind in ("tp-loss", "tp-kept"))


def test_the_accuracy_has_a_learning_curve_of_its_own():
    """A performance curve of the validation split; the training data have loss and recall instead."""
    evaluations = [
        EvaluationDone(
            step=step, epoch=1.0, why="planned", loss=1.0, validation_key="mark", perplexity=1.0,
            accuracy=step / 20, tokens=9, seconds=1.0,
        )
        for step in (5, 10, 15)
    ]  # fmt: skip
    title = "Validation: tokens predicted correctly (%)"
    assert title in charts.run_charts([], evaluations, []) and title not in charts.run_charts([], [], [])
    assert not {field.name for field in fields(Step)} & {"accuracy", "right"}
    assert "the accuracy on the validation split" in read_page("curve of the training accuracy")


def test_the_memory_for_the_weights_follows_from_the_space_that_the_model_occupies_on_disk(place):
    on_disk = (place.tiny / "model.safetensors").stat().st_size
    report = PeftEngine().check(place.settings(), place.host())
    assert report.memory.weights == pytest.approx(on_disk, rel=0.05)
    assert report.memory.total > 1.2 * on_disk, "training takes more than inference"
