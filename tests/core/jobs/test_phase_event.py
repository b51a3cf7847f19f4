"""The figures of each phase of hybrid batching, and their table."""

from __future__ import annotations

import math

import pytest
from training_pro.core.jobs import EvaluationDone, Step, event_text
from training_pro.core.jobs.phase_event import PHASE_COLUMNS, PhasesMeasured, measure_phases, phase_table

PHASES = ["by length"] * 3 + ["pairs of neighbors"] * 2 + ["sequential"]


def step(number, phase, loss=None):
    loss = 4 - number / 2 if loss is None else loss
    return Step(
        step=number, epoch=number / 3, loss=loss, smoothed=loss + 0.25, learning_rate=1e-4, gradient_norm=None,
        tokens=9, seconds=1.0, phase=phase, examples=2,
    )  # fmt: skip


def evaluation(number, loss, gain=None, key="k"):
    return EvaluationDone(
        step=number, epoch=number / 3, why="planned", loss=loss, perplexity=math.exp(loss), accuracy=0.5, tokens=9,
        seconds=1.0, context_gain=gain, validation_key=key,
    )  # fmt: skip


STEPS = [step(number, phase) for number, phase in enumerate(PHASES, start=1)]
EVALUATIONS = [
    evaluation(0, 3.5, 0.01),
    evaluation(3, 2.5, 0.02),
    evaluation(4, 2.3, 0.03),
    evaluation(5, 2.0, 0.05),
]


def test_each_phase_has_its_steps_examples_and_losses():
    length, pairs, order = measure_phases(STEPS, EVALUATIONS)
    assert (length.name, length.first_step, length.last_step, length.steps) == ("by length", 1, 3, 3)
    assert (length.examples, length.mean_loss, length.smoothed) == (6, 3.0, 2.75)
    assert (pairs.first_step, pairs.last_step, pairs.examples) == (4, 5, 4)
    assert (order.name, order.steps) == ("sequential", 1)


def test_a_phase_is_compared_with_the_evaluation_before_its_first_step():
    length, pairs, order = measure_phases(STEPS, EVALUATIONS)
    assert (length.before.step, length.after.step) == (0, 3)
    assert (pairs.before.step, pairs.after.step) == (3, 5)
    assert (order.before.step, order.after) == (5, None)


def test_evaluations_of_another_validation_split_are_not_compared():
    (length, *_) = measure_phases(STEPS, [evaluation(0, 9.0, key="old"), evaluation(2, 2.0)])
    assert (length.before, length.after.step) == (None, 2)
    assert phase_table([length])[1][5] == "2.0000"


@pytest.mark.parametrize("steps", [[], [step(1, ""), step(2, "")]])
def test_a_run_with_one_order_has_no_phases(steps):
    assert measure_phases(steps, EVALUATIONS) == ()
    assert phase_table(()) == []


def test_the_table_shows_what_each_phase_changed():
    header, *rows = phase_table(measure_phases(STEPS, EVALUATIONS))
    assert header == PHASE_COLUMNS
    assert rows == [
        ("by length", "3 (1 to 3)", "6", "3.0000", "2.7500", "3.5000 to 2.5000", "33.12 to 12.18",
         "0.0100 to 0.0200"),
        ("pairs of neighbors", "2 (4 to 5)", "4", "1.7500", "1.7500", "2.5000 to 2.0000", "12.18 to 7.389",
         "0.0200 to 0.0500"),
        ("sequential", "1 (6 to 6)", "2", "1.0000", "1.2500", "-", "-", "-"),
    ]  # fmt: skip


def test_columns_without_a_value_are_omitted():
    assert phase_table(measure_phases(STEPS, []))[0] == PHASE_COLUMNS[:5]
    assert phase_table(measure_phases(STEPS, [evaluation(3, 2.0)]))[0] == PHASE_COLUMNS[:7]
    (phase,) = measure_phases([step(1, "by length", math.nan)], [])
    assert phase_table([phase])[0] == ("Phase", "Steps", "Examples", "Smoothed loss")[:3]


def test_values_for_the_log():
    values = measure_phases(STEPS, EVALUATIONS)[1].as_log()
    assert values["before"] == {"step": 3, "loss": 2.5, "perplexity": math.exp(2.5), "context_gain": 0.02}
    assert values["after"]["context_gain"] == 0.05
    assert (values["name"], values["steps"], values["examples"]) == ("pairs of neighbors", 2, 4)
    assert measure_phases(STEPS, [])[0].as_log()["after"] is None


def test_the_lines_of_the_console_are_aligned():
    title, header, *rows = event_text(PhasesMeasured(phases=measure_phases(STEPS, EVALUATIONS))).split("\n")
    assert title == "Phases of hybrid batching:"
    column = header.index("Validation loss")
    assert [row[column:].split("  ")[0] for row in rows] == ["3.5000 to 2.5000", "2.5000 to 2.0000", "-"]
