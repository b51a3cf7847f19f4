"""Checks against the steps of a run: schedule points out of order, and settings without effect."""

from __future__ import annotations

import numpy as np
import pytest
from training_pro.core.errors import DataError
from training_pro.core.findings import texts
from training_pro.data.examples import Examples, RowSource
from training_pro.data.report import check_plan
from training_pro.engine.peft_engine import PeftEngine
from training_pro.settings.parsing import training_settings
from training_pro.train_utils import StepPlan

ORDER = {"batching": "length_then_order"}
PAIRS = {**ORDER, "switch_pairs": True, "batch_size": 2}
STEPS = {**ORDER, "switch_after": "steps"}
VALIDATION = {"eval_share": 0.2}


def rows(count, tokens=4):
    ids, first = np.zeros(count * tokens, np.int32), np.arange(0, (count + 1) * tokens, tokens)
    numbers, follows = np.arange(count), np.ones(count, bool)
    return Examples([RowSource("rows", ids, np.ones(len(ids), bool), first, numbers, follows, "row", str)])


ALONE = Examples([source for _ in range(20) for source in rows(1).sources])


def told(level, epochs, examples=None, context=64, held_out=0, **values):
    """What is said of a run of five steps per epoch."""
    settings = training_settings({"name": "a", "data": ["x.txt"], "warmup_steps": 0, **values})
    validation = rows(held_out) if held_out else Examples([])
    plan = StepPlan(20, 4, 1, epochs)
    return list(texts(check_plan(settings, plan, examples or rows(20), validation, context), level))


def test_check_and_training_give_the_same_problem(place):
    crossed = {"schedule": "0.5:1 1e:0", "epochs": 4}
    (problem,) = PeftEngine().check(place.settings(**crossed), place.host()).problems
    with pytest.raises(DataError) as error:
        place.train(**crossed)
    assert str(error.value) == problem and problem.startswith("LR Scheduler: the point 1e:0 is at step")


NEVER = "is never reached, so batches stay grouped by length: the run has "
PAIR = "so the pair phase lasts until the end"
SOONER = "or train for more epochs."


@pytest.mark.parametrize(
    ("epochs", "values", "expected", "remedy"),
    [
        (1, ORDER, f"Switch at 1 {NEVER}1 epoch.", SOONER),
        (3, {**STEPS, "switch_at": 15}, f"15 {NEVER}15 steps.", SOONER),
        (3, {**STEPS, "switch_at": 14}, "", ""),
        (0.2, STEPS, "the run has 1 step.", SOONER),
        (1, {**ORDER, "switch_after": "loss", "switch_at": 9}, "", ""),
        (3, PAIRS, "", ""),
        (2, PAIRS, f"Second switch at 2 is never reached, {PAIR}", SOONER),
        (2, {**PAIRS, **STEPS, "switch_at": 3, "second_switch_at": 6}, "", ""),
        (4, {**PAIRS, "second_switch_at": 9}, PAIR, SOONER),
        (3, {**VALIDATION, "early_stopping": 3}, "15 steps has only 2 evaluations", "every' to 4 or less."),
        (3, {**VALIDATION, "early_stopping": 2}, "", ""),
        (1, {**VALIDATION, "early_stopping": 5}, "has only 0 evaluations before its end", "Set it to 0 (off)."),
        (3, {"stop_at_epoch": 9}, "Stop at epoch: the value 9 has no effect", "Set it to 0 (off)."),
    ],
)
def test_settings_that_ask_for_what_is_after_the_end(epochs, values, expected, remedy):
    sentences = told("advice", epochs, **values)
    assert len(sentences) == bool(expected)
    assert all(expected in sentence and sentence.endswith(remedy) for sentence in sentences)


def test_pairs_without_adjacent_examples():
    (sentence,) = told("advice", 3, ALONE, **PAIRS)
    assert sentence.startswith("Pair phase: none of the 20 examples starts where another one ends")
    (sentence,) = told("advice", 3, rows(20, tokens=5), 9, **PAIRS)
    assert "no two adjacent examples fit together in the model's context of 9 tokens" in sentence
    assert sentence.endswith("use a cutoff of 4.")
    assert told("advice", 3, rows(20, tokens=5), 10, **PAIRS) == []
    assert told("advice", 3, ALONE, **ORDER) == []


RUN = "During the run, "
FLAT = {"schedule": "FP_low_epoch_annealing", "sample_every": "never"}
SAMPLES = "the model continues passages from your data {} times to show samples"
EVALUATIONS = "the model is evaluated on the validation split (8 tokens) {} times"


@pytest.mark.parametrize(
    ("epochs", "values", "expected"),
    [
        (2, {}, f"{RUN}{SAMPLES.format(3)}."),
        (2, {"sample_every": 3}, f"{RUN}{SAMPLES.format(5)}."),
        (2, {"sample_every": "never", "eval_every": 100, "held_out": 2}, f"{RUN}{EVALUATIONS.format(2)}."),
        (2, {"held_out": 2}, f"{RUN}{SAMPLES.format(3)}, and {EVALUATIONS.format(3)}."),
        (1, FLAT, "With FP_low_epoch_annealing and a single epoch"),
        (2, FLAT, None),
    ],
)
def test_notes_on_samples_evaluations_and_schedules_that_never_fall(epochs, values, expected):
    notes = told("note", epochs, **values)
    assert [note.startswith(expected or "?") for note in notes] == [True] * bool(expected)
