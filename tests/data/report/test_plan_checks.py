"""Checks against the steps of a run: schedule points out of order, and settings without effect."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.core.findings import texts
from training_pro.data.examples import Examples, RowSource
from training_pro.data.report import plan_checks
from training_pro.engine.peft_engine import PeftEngine
from training_pro.schedulers import ScheduleSteps, describe_phases, get_schedule, lr_multipliers
from training_pro.settings.parsing import training_settings
from training_pro.train_utils import StepPlan

ORDER = {"batching": "length_then_order"}
PAIRS = {**ORDER, "switch_pairs": True, "batch_size": 2}
STEPS = {"switch_after": "steps"}


def rows(count, tokens=4):
    return Examples([file_of(count, tokens)])


def file_of(count, tokens=4):
    ids, first = np.zeros(count * tokens, np.int32), np.arange(0, (count + 1) * tokens, tokens)
    rows, follows = np.arange(count), np.ones(count, bool)
    return RowSource("rows", ids, np.ones(len(ids), bool), first, rows, follows, "row", str)


def separate_files(count):
    """Rows in separate files, so that no row follows another."""
    return Examples([file_of(1) for _ in range(count)])


def settings_of(**values):
    return training_settings({"name": "a", "data": ["x.txt"], "warmup_steps": 0, **values})


def advice(epochs, examples=None, context=64, **values):
    """The advice for a run of five steps per epoch."""
    plan = StepPlan(20, 4, 1, epochs)
    return sentences("advice", plan, examples or rows(20), context=context, **values)


def sentences(level, plan, examples=None, validation=None, context=64, **values):
    arguments = (settings_of(**values), plan, examples or rows(20), validation or Examples([]), context)
    return list(texts(plan_checks.check_plan(*arguments), level))


@pytest.mark.parametrize(
    ("points", "epochs", "crossed"),
    [
        ("0.5:1 1e:0", 4, ["1e:0 is at step 5 but is listed after 0.5:1, which is at step 10 of 20"]),
        ("0.5:1 1e:0", 2, []),  # both at step 5: a fall at once
        ("0.5:1 1e:0", 1, []),
        ("0:0 2e:1 0.1:0.5 1:0", 6, ["0.1:0.5 is at step 3 but is listed after 2e:1, which is at step 10 of 30"]),
        ("0:0 2e:1 0.9:0.5 1:0", 6, []),
        ("1:0 1e:1 0.1:0", 4, ["1e:1 is at step 5 but", "0.1:0 is at step 2 but"]),
        ("cosine", 4, []),
    ],
)
def test_schedule_points_that_are_out_of_order_in_steps(points, epochs, crossed):
    problems = sentences("problem", StepPlan(20, 4, 1, epochs), schedule=points)
    assert len(problems) == len(crossed)
    for sentence, expected in zip(problems, crossed, strict=True):
        assert sentence.startswith("LR Scheduler: the point ")
        assert expected in sentence


def test_points_out_of_order_still_have_defined_rates():
    phases = get_schedule("0.5:1 3e:0").phases(ScheduleSteps(40, 5))
    assert (
        describe_phases(phases) == "constant at 0% of the learning rate until step 15, "
        "linear rise to 100% of the learning rate until step 20, "
        "constant at 100% of the learning rate until step 40"
    )
    rates = lr_multipliers(phases, 40)
    assert rates[:15] == [0] * 15
    assert rates[19:] == [1] * 21


def test_check_and_training_give_the_same_problem(place):
    crossed = {"schedule": "0.5:1 1e:0", "epochs": 4}
    (problem,) = PeftEngine().check(place.settings(**crossed), place.host()).problems
    with pytest.raises(DataError) as error:
        place.train(**crossed)
    assert str(error.value) == problem
    assert "1e:0 is at step" in problem
    (advice,) = PeftEngine().check(place.settings(**ORDER, learning_rate=2e-4), place.host()).advice
    assert advice.startswith("Switch at 1 is never reached, so batches stay grouped by length: the run has 1")


SOONER = "Set 'Switch after' to Steps and switch earlier, for example at "


@pytest.mark.parametrize(
    ("epochs", "values", "expected"),
    [
        (
            1,
            ORDER,
            (
                "Switch at 1 is never reached, so batches stay grouped by length: the run has 1 epoch.",
                f"{SOONER}2, or train for more epochs.",
            ),
        ),
        (2, ORDER, None),
        (
            3,
            {**ORDER, "switch_at": 9},
            (
                "Switch at 9 is never reached, so batches stay grouped by length: the run has 3",
                "Use 2 or less.",
            ),
        ),
        (1.2, ORDER, None),
        (
            3,
            {**ORDER, **STEPS, "switch_at": 15},
            ("15 is never reached, so batches stay grouped by length: the run has 15 steps.", "Use 14 or less."),
        ),
        (3, {**ORDER, **STEPS, "switch_at": 14}, None),
        (
            0.2,
            {**ORDER, **STEPS},
            ("the run has 1 step.", "Set 'Batch order' to 'By length', or train for more epochs."),
        ),
        (1, {**ORDER, "switch_after": "loss", "switch_at": 9}, None),
        (1, {"switch_at": 9}, None),
        (3, PAIRS, None),
        (
            2,
            PAIRS,
            (
                "Second switch at 2 is never reached, so the pair phase lasts until the end: the run has 2",
                f"{SOONER}3 and 6, or train for more epochs.",
            ),
        ),
        (
            4,
            {**PAIRS, "second_switch_at": 9},
            ("the pair phase lasts until the end: the run has 4", "Use 3 or less."),
        ),
    ],
)
def test_order_changes_after_the_end_of_the_run(epochs, values, expected):
    sentences = advice(epochs, **values)
    assert len(sentences) == (expected is not None)
    if expected:
        assert expected[0] in sentences[0]
        assert sentences[0].endswith(expected[1])


def test_the_advice_on_changes_helps():
    assert advice(1, **{**ORDER, **STEPS, "switch_at": 2}) == []
    assert advice(2, **{**PAIRS, **STEPS, "switch_at": 3, "second_switch_at": 6}) == []


def test_pairs_without_adjacent_examples():
    (sentence,) = advice(3, separate_files(20), **PAIRS)
    assert sentence.startswith("Pair phase: none of the 20 examples starts where another one ends")
    (sentence,) = advice(3, rows(20, tokens=5), 9, **PAIRS)
    assert "no two adjacent examples fit together in the model's context of 9 tokens" in sentence
    assert sentence.endswith("use a cutoff of 4.")
    assert advice(3, rows(20, tokens=5), 10, **PAIRS) == []
    assert advice(3, rows(20, tokens=5), 0, **PAIRS) == []
    assert advice(3, separate_files(20), **ORDER) == []


VALIDATION = {"eval_share": 0.2}


@pytest.mark.parametrize(
    ("epochs", "values", "expected"),
    [
        (
            3,
            {"eval_every": 10**6, "early_stopping": 3},
            ("has only 0 evaluations before its end", "Set 'Evaluate every' to 4 or less."),
        ),
        (3, {"early_stopping": 3}, ("15 steps has only 2 evaluations", "Set 'Evaluate every' to 4 or less.")),
        (3, {"early_stopping": 2}, None),
        (3, {"eval_every": 4, "early_stopping": 3}, None),
        (1, {"early_stopping": 5}, ("has only 0 evaluations before its end", "Set it to 0 (off).")),
        (1, {"early_stopping": 0}, None),
    ],
)
def test_early_stopping_without_enough_evaluations(epochs, values, expected):
    sentences = advice(epochs, **VALIDATION, **values)
    assert len(sentences) == (expected is not None)
    if expected:
        assert expected[0] in sentences[0]
        assert sentences[0].endswith(expected[1])


def test_a_stop_epoch_after_the_end():
    assert advice(3, stop_at_epoch=9) == [
        "Stop at epoch: the value 9 has no effect, because the run ends at epoch 3. Set it to 0 (off)."
    ]
    assert advice(3, stop_at_epoch=3) == advice(3, stop_at_epoch=0) == []


@pytest.mark.parametrize(
    ("schedule", "epochs", "is_flat"),
    [("FP_low_epoch_annealing", 1, True), ("FP_low_epoch_annealing", 2, False), ("cosine", 1, False)],
)
def test_a_schedule_that_never_falls_is_noted(schedule, epochs, is_flat):
    notes = sentences("note", StepPlan(20, 4, 1, epochs), schedule=schedule, sample_every="never")
    assert [note.startswith(f"With {schedule} and a single epoch") for note in notes] == [True] * is_flat


@pytest.mark.parametrize(
    ("values", "validation_rows", "expected"),
    [
        ({}, 0, ["the model continues passages from your data 3 times to show samples."]),
        ({"sample_every": "never"}, 0, []),
        (
            {"sample_every": 3},
            0,
            ["the model continues passages from your data 5 times to show samples."],
        ),
        (
            {"sample_every": "never", "eval_every": 100},
            2,
            ["the model is evaluated on the validation split (8 tokens) 2 times."],
        ),
        (
            {},
            2,
            [
                "the model continues passages from your data 3 times to show samples, and the model is "
                "evaluated on the validation split (8 tokens) 3 times."
            ],
        ),
    ],
)
def test_notes_say_how_often_a_run_samples_and_evaluates(values, validation_rows, expected):
    validation = rows(validation_rows) if validation_rows else None
    notes = sentences("note", StepPlan(20, 4, 1, 2), validation=validation, **values)
    assert notes == [f"During the run, {activities}" for activities in expected]
