"""The rate of each schedule at every step, against a second, independent definition; and schedules by points."""

from math import cos, exp, pi, sin, sqrt

import pytest
from training_pro.records.folder import read_graph
from training_pro.schedulers import (
    SCHEDULES,
    ScheduleSteps,
    describe_phases,
    find_crossed_points,
    get_schedule,
    lr_multipliers,
    schedule_problem,
)

PLANS = [
    ScheduleSteps(steps=round(epochs * epoch), steps_per_epoch=epoch, warmup=warmup)
    for epochs in (1, 2, 3, 10, 0.5, 1.5, 2.5, 3.4)
    for epoch in (1, 2, 7, 10, 24)
    for warmup in (0, 1, 3, 10, 1000)
    if round(epochs * epoch) >= 1
]


def with_warmup(s, w, otherwise):
    return (s + 1) / w if s < w else otherwise()


def cosine_down(s, start, end):
    """A cosine from 1 at `start` to 0 at `end`."""
    return (1 + cos(pi * (s - start) / (end - start))) / 2


def cosine_up(s, end):
    """A cosine from 0 to 1 in the first `end` steps, counted so that the first step is not 0."""
    return (1 - cos(pi * (s + 1) / end)) / 2


def hold_then_down(s, n, w, hold_end):
    return with_warmup(s, min(w, hold_end), lambda: 1 if s < hold_end else cosine_down(s, hold_end, n))


def raise_hold_fall(s, n, e):
    e = e if n >= 3 * e else max(1, n // 3)
    if s < e:
        return sin(pi / 2 * (s + 1) / e)
    return 1 if s < 2 * e else cos(pi / 2 * (s - 2 * e) / (n - 2 * e))


def up_and_down(s, n, peak):
    return cosine_up(s, peak) if s < peak else cosine_down(s, peak, n)


def restarts(s, n, e, w):
    start, end = s // e * e, min((s // e + 1) * e, n)
    return with_warmup(s, min(w, n), lambda: cosine_down(s, max(start, w), end))


def stable_then_down(s, n, w):
    decay_start = max(w, n - round(n / 5))
    return with_warmup(s, w, lambda: 1 if s < decay_start else 1 - (s - decay_start) / (n - decay_start))


def completed_share(s, n, w):
    """The completed share of the run after the warm-up."""
    return (s - w) / (n - w)


# s: the step, n: all steps, e: the steps of an epoch, w: the warm-up setting.
DEFINITIONS = {
    "FP_low_epoch_annealing": lambda s, n, e, w: hold_then_down(s, n, w, min(e, n)),
    "FP_half_time_annealing": lambda s, n, e, w: hold_then_down(s, n, w, max(1, n // 2)),
    "FP_raise_fall_creative": lambda s, n, e, w: up_and_down(s, n, max(1, n // 2)),
    "FP_3epoch_raise_hold_fall": lambda s, n, e, w: raise_hold_fall(s, n, e),
    "FP_step_decay_with_warmup": lambda s, n, e, w: with_warmup(s, min(w, e, n), lambda: 1 / 2 ** (s // e)),
    "constant": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: 1),
    "linear": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: 1 - completed_share(s, n, w)),
    "cosine": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: cosine_down(s, w, n)),
    "cosine_with_restarts": restarts,
    "polynomial": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: (1 - completed_share(s, n, w)) ** 2),
    "inverse_sqrt": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: sqrt(max(w, 1) / (s + 1))),
    "step_decay": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: 1 / 2 ** (s // e)),
    "exponential": lambda s, n, e, w: with_warmup(s, min(w, n), lambda: exp(-3 * completed_share(s, n, w))),
    "one_cycle": lambda s, n, e, w: up_and_down(s, n, max(1, round(0.3 * n))),
    "warmup_stable_decay": lambda s, n, e, w: stable_then_down(s, n, min(w, n)),
}


NEVER_0 = {"constant", "inverse_sqrt", "step_decay", "exponential", "FP_step_decay_with_warmup"}


def rates(name, plan, steps=None):
    return lr_multipliers(get_schedule(name).phases(plan), plan.steps if steps is None else steps)


def test_every_schedule_has_a_definition_here():
    assert DEFINITIONS.keys() == SCHEDULES.keys()
    assert all(name == schedule.name and get_schedule(name) is schedule for name, schedule in SCHEDULES.items())


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_is_as_defined_and_lies_in_exactly_one_phase(name):
    for plan in PLANS:
        n, e, w = plan.steps, plan.steps_per_epoch, plan.warmup
        found = rates(name, plan)
        assert found == pytest.approx([DEFINITIONS[name](s, n, e, w) for s in range(n)], abs=1e-12), plan
        assert all(0 < rate <= 1 for rate in found), plan
        phases = SCHEDULES[name].phases(plan)
        assert [s for phase in phases for s in range(phase.start, phase.end)] == list(range(n)), plan
        for phase in phases:
            inside = [phase.at(s) for s in range(phase.start, phase.end)]
            assert inside and inside == sorted(inside, reverse=not phase.rising), plan
            assert not phase.rising or inside[-1] == pytest.approx(1), plan


@pytest.mark.parametrize("name", SCHEDULES)
def test_the_ends_of_a_schedule(name):
    for warmup in (0, 1, 5):
        for epoch in (1, 10):
            assert rates(name, ScheduleSteps(1, epoch, warmup)) == pytest.approx([1])
    for epochs in (2, 3, 10):
        plan = ScheduleSteps(10 * epochs, 10, 2)
        values = rates(name, plan, steps=plan.steps + 3)
        assert values[: plan.steps] == rates(name, plan)
        assert len(set(values[plan.steps :])) == 1 and 0 <= values[-1] <= values[plan.steps - 1]
        assert (values[-1] == pytest.approx(0, abs=1e-12)) == (name not in NEVER_0)


# Written out by hand, to catch mistakes in the definitions above too.
@pytest.mark.parametrize(
    ("name", "plan", "expected"),
    [
        ("FP_low_epoch_annealing", ScheduleSteps(4, 2, 9), [0.5, 1, 1, 0.5]),
        ("FP_half_time_annealing", ScheduleSteps(8, 4, 2), [0.5, 1, 1, 1, 1, 0.8536, 0.5, 0.1464]),
        ("FP_raise_fall_creative", ScheduleSteps(8, 4, 3), [0.1464, 0.5, 0.8536, 1, 1, 0.8536, 0.5, 0.1464]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(6, 3), [0.7071, 1, 1, 1, 1, 0.7071]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(8, 2), [0.7071, 1, 1, 1, 1, 0.9239, 0.7071, 0.3827]),
        ("FP_step_decay_with_warmup", ScheduleSteps(6, 2, 2), [0.5, 1, 0.5, 0.5, 0.25, 0.25]),
        ("constant", ScheduleSteps(4, 2, 2), [0.5, 1, 1, 1]),
        ("linear", ScheduleSteps(6, 2, 2), [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", ScheduleSteps(4, 2), [1, 0.8536, 0.5, 0.1464]),
        ("cosine_with_restarts", ScheduleSteps(5, 2), [1, 0.5, 1, 0.5, 1]),
        ("polynomial", ScheduleSteps(4, 2), [1, 0.5625, 0.25, 0.0625]),
        ("inverse_sqrt", ScheduleSteps(5, 5, 2), [0.5, 1, 0.8165, 0.7071, 0.6325]),
        ("step_decay", ScheduleSteps(5, 2, 3), [0.3333, 0.6667, 1, 0.5, 0.25]),
        ("exponential", ScheduleSteps(3, 1), [1, 0.3679, 0.1353]),
        ("one_cycle", ScheduleSteps(10, 5), [0.25, 0.75, 1, 1, 0.9505, 0.8117, 0.6113, 0.3887, 0.1883, 0.0495]),
        ("warmup_stable_decay", ScheduleSteps(10, 5, 1), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5]),
        ("0:0 0.2:1 0.6:1 1:0", ScheduleSteps(10, 10), [0.5, 1, 1, 1, 1, 1, 1, 0.75, 0.5, 0.25]),
        ("0:1 1e:1 2e:0.5 3e:0.5", ScheduleSteps(6, 2), [1, 1, 1, 0.75, 0.5, 0.5]),
        ("0:0 0.2:1 1e:1 1:0", ScheduleSteps(10, 5), [0.5, 1, 1, 1, 1, 1, 0.8, 0.6, 0.4, 0.2]),
        ("0.5:0.2 0.7:0.4", ScheduleSteps(10, 10), [0.2, 0.2, 0.2, 0.2, 0.2, 0.3, 0.4, 0.4, 0.4, 0.4]),
        ("0:1 0.5:1 0.5:0.1 1:0.1", ScheduleSteps(4, 10), [1, 1, 0.1, 0.1]),  # a jump
        ("0:1 4e:0", ScheduleSteps(4, 2), [1, 0.875, 0.75, 0.625]),  # cut off where the run ends
    ],
)
def test_small_runs_written_out(name, plan, expected):
    assert rates(name, plan) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize("text", ["0:0 0.05:1 0.5:1 1:0", "0:1", "1:0.5", "3e:1", "0:0 1:1"])
def test_short_runs_by_points_have_a_rate_for_each_step(text):
    for steps in (1, 2, 3, 7):
        values = rates(text, ScheduleSteps(steps, 2))
        assert len(values) == steps and all(0 <= rate <= 1 for rate in values)


def test_where_epochs_end():
    assert [ScheduleSteps(n, 2).epoch_ends for n in (6, 5, 2, 1)] == [[2, 4, 6], [2, 4, 5], [2], [1]]
    assert ScheduleSteps(3, 1).epoch_ends == [1, 2, 3]


def test_schedules_in_words():
    phases = SCHEDULES["FP_low_epoch_annealing"].phases(ScheduleSteps(120, 60, 10))
    assert (
        describe_phases(phases) == "warmup until step 10, constant until step 60, cosine decay to 0 until step 120"
    )
    by_points = get_schedule("0:0 0.1:1 0.5:1 1:0").phases(ScheduleSteps(100, 50))
    words = [part.split(" of ")[0] for part in describe_phases(by_points).split(", ")]
    assert words == ["linear rise to 100%", "constant at 100%", "linear decay to 0%"]
    assert [phase.rising for phase in by_points] == [True, False, False]
    halved = [phase.words for phase in SCHEDULES["step_decay"].phases(ScheduleSteps(6, 2))]
    assert halved == ["constant", "halved once", "halved 2 times"]
    held = [phase.words for phase in get_schedule("0.5:0.2 0.7:0.4").phases(ScheduleSteps(10, 10))]
    assert [held[0].split()[2], held[-1].split()[2]] == ["20%", "40%"]


def test_points_that_cross_once_epochs_are_steps_are_named():
    plan = ScheduleSteps(10, 5)
    for text in ("cosine", "0:1 1e:1 1:0", "0:1 0.5:1 0.5:0.1 1:0.1", "0.5:1 1e:0"):  # the last two fall at once
        assert list(find_crossed_points(text, plan)) == []
    (problem,) = find_crossed_points("0:1 0.6:1 1e:0", plan)
    assert "the point 1e:0 is at step 5 but is listed after 0.6:1, which is at step 6 of 10" in problem
    first, second = find_crossed_points("1:0 1e:1 0.1:0", plan)
    assert "1e:1 is at step 5 but" in first and "0.1:0 is at step 1 but" in second


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("wiggle", "'wiggle' is neither the name of a schedule nor a point."),
        ("0:0 half:1", "'half:1' is neither"),
        ("0:0 1001e:1", "'1001e:1' is neither"),
        ("0:0 0.5:11", "'0.5:11' is neither"),
        ("0:0 nan:1", "'nan:1' is neither"),
        ("0.5:1 0.2:0", "the point at 0.2 is listed after the point at 0.5. Swap them."),
        ("", "no schedule is chosen"),
        ("0:0 1:10", ""),
        ("0e:0 1000e:10", ""),
    ],
)
def test_malformed_points_are_explained(text, words):
    assert schedule_problem(text)[: len(words) or None] == words


def test_a_run_by_points(place):
    place.train(schedule="0:0 0.5e:1 1:0", learning_rate=1e-2, max_steps=4)
    found = [entry["learning_rate"] for entry in read_graph(place.lora())]
    assert found == pytest.approx([5e-3, 1e-2, 1e-2, 5e-3])
