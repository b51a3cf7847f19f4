"""Schedules by points: straight lines between points given by shares of the run or ends of epochs."""

from __future__ import annotations

import pytest
from training_pro.schedulers import (
    SCHEDULES,
    ScheduleSteps,
    describe_phases,
    find_crossed_points,
    get_schedule,
    lr_multipliers,
    schedule_problem,
)


def rates(text, steps, epoch=10):
    phases = get_schedule(text).phases(ScheduleSteps(steps, epoch))
    return [round(m, 6) for m in lr_multipliers(phases, steps)]


def test_up_hold_and_down_at_every_step():
    assert rates("0:0 0.2:1 0.6:1 1:0", 10) == [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]


def test_no_step_has_rate_0_on_the_way_up_and_a_fall_begins_at_its_top():
    values = rates("0:0 0.5:1 1:0", 20)
    assert values[:10] == [round((s + 1) / 10, 6) for s in range(10)]
    assert values[10:] == [round(1 - s / 10, 6) for s in range(10)]


def test_ends_of_epochs():
    falling = [round(1 - 0.05 * s, 6) for s in range(10)]
    assert rates("0:1 1e:1 2e:0.5 3e:0.5", 30) == [1.0] * 10 + falling + [0.5] * 10


def test_shares_and_epochs_mixed():
    assert rates("0:0 0.1:1 2e:1 1:0", 40)[20:] == [round(1 - s / 20, 6) for s in range(20)]


def test_before_the_first_and_after_the_last_point_the_rate_is_held():
    assert rates("0.5:0.2 0.7:0.4", 10) == [0.2] * 5 + [0.3, 0.4, 0.4, 0.4, 0.4]


def test_two_points_at_one_place_are_a_jump():
    assert rates("0:1 0.5:1 0.5:0.1 1:0.1", 4) == [1, 1, 0.1, 0.1]


@pytest.mark.parametrize("steps", [1, 2, 3, 7])
@pytest.mark.parametrize("text", ["0:0 0.05:1 0.5:1 1:0", "0:1", "1:0.5", "3e:1", "0:0 1:1"])
def test_short_runs_have_a_rate_for_each_step(text, steps):
    values = rates(text, steps, epoch=2)
    assert len(values) == steps
    assert all(0 <= rate <= 1 for rate in values)


def test_beyond_the_end_of_the_run_a_line_is_cut():
    assert rates("0:1 4e:0", 20) == [round(1 - s / 40, 6) for s in range(20)]


def test_points_that_cross_once_epochs_are_steps_are_named():
    plan = ScheduleSteps(10, 5)
    assert list(find_crossed_points("cosine", plan)) == []
    assert list(find_crossed_points("0:1 1e:1 1:0", plan)) == []
    assert list(find_crossed_points("0:1 0.6:1 1e:0", plan)) == [
        "the point 1e:0 is at step 5 but is listed after 0.6:1, which is at step 6 of 10. "
        "Swap them, or move one of them."
    ]


def test_only_a_rise_is_a_rising_phase():
    phases = get_schedule("0:0 0.2:1 0.6:1 1:0").phases(ScheduleSteps(10, 10))
    assert [phase.rising for phase in phases] == [True, False, False]


def test_the_description():
    phases = get_schedule("0:0 0.1:1 0.5:1 1:0").phases(ScheduleSteps(100, 50))
    assert (
        describe_phases(phases) == "linear rise to 100% of the learning rate until step 10, "
        "constant at 100% of the learning rate until step 50, "
        "linear decay to 0% of the learning rate until step 100"
    )


def test_known_names_are_schedules():
    assert all(get_schedule(name) is schedule for name, schedule in SCHEDULES.items())


@pytest.mark.parametrize(
    ("text", "sentence"),
    [
        ("wiggle", "'wiggle' is neither the name of a schedule nor a point."),
        ("0:0 half:1", "'half:1' is neither the name of a schedule nor a point."),
        ("0:0 1.5:1", "'1.5:1' is neither"),
        ("0:0 0.5:-1", "'0.5:-1' is neither"),
        ("0.5:1 0.2:0", "the point at 0.2 is listed after the point at 0.5. Swap them."),
        ("0:0 nan:1", "'nan:1' is neither"),
    ],
)
def test_malformed_points_are_explained(text, sentence):
    assert schedule_problem(text).startswith(sentence)


def test_a_run_by_points(place):
    from training_pro.tests.engine.architectures import read_graph, read_log

    place.train(schedule="0:0 0.5:1 1:0", learning_rate=1e-2, max_steps=4)
    values = [entry["learning_rate"] for entry in read_graph(place)]
    assert values == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3])
    assert (
        read_log(place)["schedule"] == "0:0 0.5:1 1:0: linear rise to 100% of the learning rate until step 2, "
        "linear decay to 0% of the learning rate until step 4"
    )
