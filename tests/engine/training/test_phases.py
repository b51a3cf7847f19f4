"""The monitoring of hybrid batching: an evaluation at each change of phase, and the table by phase."""

from __future__ import annotations

import json
import re
from itertools import pairwise

import pytest
from training_pro.core.host import get_model_card
from training_pro.core.jobs import EvaluationDone, Job, Step
from training_pro.core.jobs.console import EventFormatter
from training_pro.core.jobs.phase_event import PHASE_COLUMNS, PhasesMeasured
from training_pro.data.report import count_evaluations
from training_pro.engine.training.sampler import BatchingPhases
from training_pro.engine.training.setup import prepare_data
from training_pro.interface.run import RunView
from training_pro.interface.tabs.run_card import run_card
from training_pro.records.folder import inventory
from training_pro.records.report import read_evaluations
from training_pro.tests.engine.architectures import read_graph, simulate_kill

HYBRID = {
    "batching": "length_then_order",
    "batch_size": 2,
    "epochs": 2,
    "switch_pairs": True,
    "switch_after": "steps",
    "switch_at": 3,
    "second_switch_at": 5,
    "eval_share": 0.2,
    "save_each_epoch": False,
}


def run_events(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **{**HYBRID, **more})
    return job.log.since(0)


def evaluated_steps(events):
    return [event.step for event in events if isinstance(event, EvaluationDone)]


def test_each_change_of_phase_is_evaluated(place):
    events = run_events(place)
    last, epoch = (steps := [e for e in events if isinstance(e, Step)])[-1].step, len(steps) // 2
    assert evaluated_steps(events) == sorted({0, 3, 5, epoch, last})
    assert [e.step for e in read_evaluations(read_graph(place))] == evaluated_steps(events)


def test_other_orders_are_evaluated_as_before(place):
    events = run_events(place, batching="shuffled", switch_pairs=False)
    last = [e for e in events if isinstance(e, Step)][-1].step
    assert evaluated_steps(events) == [0, last // 2, last]
    assert not any(isinstance(event, PhasesMeasured) for event in events)
    assert "phases" not in json.loads((place.lora() / "training_log.json").read_text())
    assert not any("examples" in entry for entry in read_graph(place))


def test_a_change_by_loss_is_evaluated_too(place):
    more = {"switch_after": "loss", "switch_pairs": False, "switch_loss_low": 50, "switch_loss_high": 60}
    events = run_events(place, **more)
    steps = [e for e in events if isinstance(e, Step)]
    before = next(a.step for a, b in pairwise(steps) if a.phase != b.phase)
    assert before in evaluated_steps(events)


def test_evaluations_of_phases_change_no_weight(place, monkeypatch):
    events = run_events(place, dropout=0.1)
    monkeypatch.setattr(BatchingPhases, "ends_with", lambda phases, step: False)
    without = run_events(place, name="b", dropout=0.1)
    assert len(evaluated_steps(without)) < len(evaluated_steps(events))
    assert place.weights("a") == place.weights("b")


@pytest.mark.parametrize("step", [3, 4])
def test_a_resumed_run_has_the_evaluations_and_phases_of_the_whole_one(place, step):
    more = {"save_every": 1, "keep_checkpoints": 99}
    run_events(place, name="whole", **more)
    run_events(place, name="cut", **more)
    simulate_kill(place, "cut", step)
    events = run_events(place, name="cut", **more, if_exists="continue")
    assert evaluated_steps(events)[0] == 5
    logs = [json.loads((place.lora(name) / "training_log.json").read_text()) for name in ("whole", "cut")]
    assert logs[0]["phases"] == logs[1]["phases"]


def test_the_table_by_phase_is_in_the_log_the_report_the_page_and_the_console(place):
    job = Job("training", "a test")
    place.train(job=job, **HYBRID)
    events = job.log.since(0)
    (measured,) = [event for event in events if isinstance(event, PhasesMeasured)]
    names = ["by length", "pairs of neighbors", "sequential"]
    assert [phase.name for phase in measured.phases] == names
    assert [phase.first_step for phase in measured.phases] == [1, 4, 6]
    assert sum(phase.steps for phase in measured.phases) == sum(isinstance(e, Step) for e in events)
    assert all(phase.before and phase.after for phase in measured.phases)
    log = json.loads((place.lora() / "training_log.json").read_text())
    assert log["phases"] == [phase.as_log() for phase in measured.phases]
    view = RunView(job)
    view.catch_up()
    card = run_card(inventory.read_entry(place.lora(), place.folders), "a")
    report = (place.lora() / "report.html").read_text(encoding="utf-8")
    loss = f"{measured.phases[1].after.loss:.4f}"
    for text in (view.html(), card, report):
        cells = re.findall(r"<t[hd][^>]*>([^<]*)</t[hd]>", text)
        assert set(names) <= set(cells)
        assert PHASE_COLUMNS[5] in cells
        assert any(cell.endswith(f"to {loss}") for cell in cells)
    formatter = EventFormatter()
    (lines,) = [line for event in events if "Phases of hybrid" in (line := formatter.line(event))]
    assert all(name in lines for name in names)


def test_the_examples_of_the_phases_are_those_of_the_run(place):
    events = run_events(place)
    (measured,) = [event for event in events if isinstance(event, PhasesMeasured)]
    log = json.loads((place.lora() / "training_log.json").read_text())
    assert sum(phase.examples for phase in measured.phases) == 2 * log["data"]["examples"]


@pytest.mark.parametrize("switch_after", ["steps", "epochs"])
def test_check_counts_the_evaluations_of_a_run(place, switch_after):
    more = {"switch_after": switch_after, "switch_at": 1, "second_switch_at": 2, "epochs": 3}
    events = run_events(place, **more)
    settings, host = place.settings(**{**HYBRID, **more}), place.host()
    data = prepare_data(settings, host, get_model_card(host), Job("training", "a test"))
    assert count_evaluations(settings, data.plan, data.validation) == len(evaluated_steps(events))
