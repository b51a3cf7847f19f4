"""The figures of each phase of hybrid batching, and their table."""

import math

from training_pro.core.jobs import EvaluationDone, PhasesMeasured, Step, event_text, measure_phases, phase_table

PHASES = ["by length"] * 3 + ["pairs of neighbors"] * 2 + ["sequential"]


def step(number, phase, loss=None):
    loss = 4 - number / 2 if loss is None else loss
    figures = {"learning_rate": 1e-4, "gradient_norm": None, "tokens": 9, "seconds": 1.0, "examples": 2}
    return Step(step=number, epoch=number / 3, loss=loss, smoothed=loss + 0.25, phase=phase, **figures)


def evaluation(number, loss, gain=None, key="k"):
    figures = {"perplexity": math.exp(loss), "accuracy": 0.5, "tokens": 9, "seconds": 1.0, "why": "planned"}
    return EvaluationDone(step=number, epoch=1.0, loss=loss, context_gain=gain, validation_key=key, **figures)


STEPS = [step(number, phase) for number, phase in enumerate(PHASES, start=1)]
EVALUATIONS = [evaluation(*row) for row in ((0, 3.5, 0.01), (3, 2.5, 0.02), (4, 2.3, 0.03), (5, 2.0, 0.05))]


def test_each_phase_is_compared_with_the_evaluation_before_its_first_step():
    header, *rows = phase_table(measure_phases(STEPS, EVALUATIONS))
    assert [len(header), *map(len, rows)] == [8] * 4
    columns = list(zip(*rows, strict=True))
    assert columns[0] == ("by length", "pairs of neighbors", "sequential")
    assert columns[1:3] == [("3 (1 to 3)", "2 (4 to 5)", "1 (6 to 6)"), ("6", "4", "2")]
    assert columns[3:5] == [("3.0000", "1.7500", "1.0000"), ("2.7500", "1.7500", "1.2500")]
    assert columns[5:7] == [
        ("3.5000 to 2.5000", "2.5000 to 2.0000", "-"),
        ("33.12 to 12.18", "12.18 to 7.389", "-"),
    ]
    assert columns[7] == ("0.0100 to 0.0200", "0.0200 to 0.0500", "-")
    (length, *_) = measure_phases(STEPS, [evaluation(0, 9.0, key="another split"), evaluation(2, 2.0)])
    assert (length.before, length.after.step) == (None, 2)


def test_columns_and_tables_without_a_value_are_omitted():
    assert [len(phase_table(measure_phases(STEPS, seen))[0]) for seen in ([], [evaluation(3, 2.0)])] == [5, 7]
    assert len(phase_table(measure_phases([step(1, "by length", math.nan)], []))[0]) == 3
    for steps in ([], [step(1, ""), step(2, "")]):
        assert measure_phases(steps, EVALUATIONS) == ()
    assert phase_table(()) == []


def test_values_for_the_log_and_lines_of_the_console():
    measured = measure_phases(STEPS, EVALUATIONS)
    assert measured[1].as_log()["before"]["context_gain"] == 0.02 and measured[2].as_log()["after"] is None
    title, header, *rows = event_text(PhasesMeasured(phases=measured)).split("\n")
    assert title == "Phases of hybrid batching:" and rows[0][header.index("Validation loss") :].startswith(
        "3.5000"
    )
