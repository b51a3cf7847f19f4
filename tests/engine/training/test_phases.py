"""The monitoring of hybrid batching: an evaluation at each change of phase, and the table by phase."""

from __future__ import annotations

import pytest
from training_pro.core.jobs import EvaluationDone, Job, PhasesMeasured, Step
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


def run(place, **more):
    job = Job("training", "a test")
    place.train(job=job, **{**HYBRID, **more})
    return job


def evaluated(job):
    return [event.step for event in events_of(job, EvaluationDone)]


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
