"""The monitoring of hybrid batching: an evaluation at each change of phase, and the table by phase."""

from __future__ import annotations

import re

import pytest
from training_pro.core.jobs import EvaluationDone, Job, PhasesMeasured, Step, console
from training_pro.interface.run import RunView
from training_pro.records.report import read_evaluations
from training_pro.tests.engine.architectures import read_graph, read_log, simulate_kill
from training_pro.tests.engine.watching import events_of

HYBRID = {
    "batching": "length_then_order",
    "batch_size": 2,
    "epochs": 2,
    "eval_share": 0.2,
    "save_each_epoch": False,
}
HYBRID |= {"switch_pairs": True, "switch_after": "steps", "switch_at": 3, "second_switch_at": 5}
NAMES = ["by length", "pairs of neighbors", "sequential"]


def run(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **{**HYBRID, **more})
    return job


def evaluated(job):
    return [event.step for event in events_of(job, EvaluationDone)]


def test_each_change_of_phase_is_evaluated_and_in_the_tables_of_a_run(place):
    job = run(place)
    steps = len(events_of(job, Step))
    assert evaluated(job) == sorted({0, 3, 5, steps // 2, steps})
    assert [e.step for e in read_evaluations(read_graph(place))] == evaluated(job)
    (measured,) = events_of(job, PhasesMeasured)
    phases = measured.phases
    assert [(phase.name, phase.first_step) for phase in phases] == list(zip(NAMES, (1, 4, 6), strict=True))
    assert sum(phase.steps for phase in phases) == steps
    assert sum(phase.examples for phase in phases) == 2 * read_log(place)["data"]["examples"]
    assert all(phase.before and phase.after for phase in phases)
    assert read_log(place)["phases"] == [phase.as_log() for phase in phases]
    view = RunView(job)
    view.catch_up()
    for text in (view.html(), (place.lora() / "report.html").read_text(encoding="utf-8")):
        cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", text)
        assert set(NAMES) <= set(cells)
        assert any(cell.endswith(f"to {phases[1].after.loss:.4f}") for cell in cells)
    formatter = console.EventPrinter(print)
    (lines,) = [line for event in job.log.since(0) if "Phases of hybrid" in (line := formatter.line(event))]
    assert all(name in lines for name in NAMES)


@pytest.mark.long
def test_other_orders_are_evaluated_as_before_and_evaluations_of_phases_change_no_weight(place):
    job = run(place, batching="shuffled", switch_pairs=False)
    last = len(events_of(job, Step))
    assert evaluated(job) == [0, last // 2, last]
    assert not events_of(job, PhasesMeasured) and "phases" not in read_log(place)
    assert not any("examples" in entry for entry in read_graph(place))
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    for name, data in (("with", ["other.txt"]), ("without", [])):
        job = run(place, name=name, dropout=0.1, eval_share=0, eval_data=data)
        assert bool(evaluated(job)) is bool(data)
    assert place.weights("with") == place.weights("without")


@pytest.mark.long
def test_a_resumed_run_has_the_evaluations_and_phases_of_the_whole_one(place):
    more = {"save_every": 1, "keep_checkpoints": 99}
    for name in ("whole", "cut"):
        run(place, name=name, **more)
    simulate_kill(place, "cut", 4)
    assert evaluated(run(place, name="cut", **more, if_exists="continue"))[0] == 5
    assert read_log(place, "whole")["phases"] == read_log(place, "cut")["phases"]
