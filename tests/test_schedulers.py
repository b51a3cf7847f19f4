"""The rate of each schedule at every step, against a second, independent definition."""

from math import cos, exp, pi, sin, sqrt

import pytest
from training_pro.schedulers import SCHEDULES, ScheduleSteps, describe_phases, lr_multipliers

PLANS = [
    ScheduleSteps(steps=round(epochs * epoch), steps_per_epoch=epoch, warmup=warmup)
    for epochs in (1, 2, 3, 10, 0.5, 1.5, 2.5, 3.4)
    for epoch in (1, 2, 7, 10, 24)
    for warmup in (0, 1, 3, 10, 1000)
    if round(epochs * epoch) >= 1
]


def plan_id(plan):
    return f"{plan.steps}of{plan.steps_per_epoch}warm{plan.warmup}"


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


def rates(name, plan, steps=None):
    return lr_multipliers(SCHEDULES[name].phases(plan), plan.steps if steps is None else steps)


def test_every_schedule_has_a_definition_here():
    assert DEFINITIONS.keys() == SCHEDULES.keys()
    assert all(name == schedule.name for name, schedule in SCHEDULES.items())


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_is_as_defined(name):
    for plan in PLANS:
        n, e, w = plan.steps, plan.steps_per_epoch, plan.warmup
        assert rates(name, plan) == pytest.approx([DEFINITIONS[name](s, n, e, w) for s in range(n)], abs=1e-12), (
            plan
        )


@pytest.mark.parametrize("name", SCHEDULES)
def test_every_step_lies_in_exactly_one_phase(name):
    for plan in PLANS:
        phases = SCHEDULES[name].phases(plan)
        assert [s for phase in phases for s in range(phase.start, phase.end)] == list(range(plan.steps)), plan
        assert all(phase.end > phase.start for phase in phases), plan


@pytest.mark.parametrize("name", SCHEDULES)
def test_no_rate_is_0_or_above_1(name):
    for plan in PLANS:
        assert all(0 < rate <= 1 for rate in rates(name, plan)), plan


@pytest.mark.parametrize("name", SCHEDULES)
def test_rising_phases_rise_to_the_peak(name):
    for plan in PLANS:
        for phase in SCHEDULES[name].phases(plan):
            phase_rates = [phase.at(s) for s in range(phase.start, phase.end)]
            assert phase_rates == sorted(phase_rates, reverse=not phase.rising), plan
            assert not phase.rising or phase_rates[-1] == pytest.approx(1), plan


@pytest.mark.parametrize("name", SCHEDULES)
def test_a_run_of_one_step_learns_at_the_full_rate(name):
    for warmup in (0, 1, 5):
        assert rates(name, ScheduleSteps(steps=1, steps_per_epoch=1, warmup=warmup)) == pytest.approx([1])
        assert rates(name, ScheduleSteps(steps=1, steps_per_epoch=10, warmup=warmup)) == pytest.approx([1])


NEVER_0 = {"constant", "inverse_sqrt", "step_decay", "exponential", "FP_step_decay_with_warmup"}


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize("epochs", [2, 3, 10])
def test_which_schedules_reach_0_where_the_run_ends(name, epochs):
    end = rates(name, ScheduleSteps(steps=10 * epochs, steps_per_epoch=10, warmup=2), steps=10 * epochs + 1)[-1]
    assert (end == pytest.approx(0, abs=1e-12)) == (name not in NEVER_0)


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(
    "plan",
    [ScheduleSteps(8, 4), ScheduleSteps(8, 4, 2), ScheduleSteps(8, 4, 50), ScheduleSteps(1, 1)],
    ids=plan_id,
)
def test_after_the_last_step_the_rate_stays(name, plan):
    values = rates(name, plan, steps=plan.steps + 3)
    assert values[: plan.steps] == rates(name, plan)
    assert len(set(values[plan.steps :])) == 1
    assert 0 <= values[-1] <= values[plan.steps - 1]


# Written out by hand, to catch mistakes in the definitions above too.
@pytest.mark.parametrize(
    ("name", "plan", "expected"),
    [
        ("FP_low_epoch_annealing", ScheduleSteps(3, 3), [1, 1, 1]),
        ("FP_low_epoch_annealing", ScheduleSteps(4, 4, 2), [0.5, 1, 1, 1]),
        ("FP_low_epoch_annealing", ScheduleSteps(4, 2, 9), [0.5, 1, 1, 0.5]),
        ("FP_low_epoch_annealing", ScheduleSteps(6, 2), [1, 1, 1, 0.8536, 0.5, 0.1464]),
        ("FP_half_time_annealing", ScheduleSteps(8, 4, 2), [0.5, 1, 1, 1, 1, 0.8536, 0.5, 0.1464]),
        ("FP_half_time_annealing", ScheduleSteps(4, 4), [1, 1, 1, 0.5]),
        ("FP_raise_fall_creative", ScheduleSteps(8, 4, 3), [0.1464, 0.5, 0.8536, 1, 1, 0.8536, 0.5, 0.1464]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(6, 2), [0.7071, 1, 1, 1, 1, 0.7071]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(2, 1), [1, 1]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(6, 3), [0.7071, 1, 1, 1, 1, 0.7071]),
        ("FP_3epoch_raise_hold_fall", ScheduleSteps(8, 2), [0.7071, 1, 1, 1, 1, 0.9239, 0.7071, 0.3827]),
        ("FP_step_decay_with_warmup", ScheduleSteps(6, 2, 2), [0.5, 1, 0.5, 0.5, 0.25, 0.25]),
        ("constant", ScheduleSteps(4, 2, 2), [0.5, 1, 1, 1]),
        ("linear", ScheduleSteps(4, 2), [1, 0.75, 0.5, 0.25]),
        ("linear", ScheduleSteps(6, 2, 2), [0.5, 1, 1, 0.75, 0.5, 0.25]),
        ("cosine", ScheduleSteps(4, 2), [1, 0.8536, 0.5, 0.1464]),
        ("cosine_with_restarts", ScheduleSteps(4, 2), [1, 0.5, 1, 0.5]),
        ("cosine_with_restarts", ScheduleSteps(5, 2), [1, 0.5, 1, 0.5, 1]),
        ("polynomial", ScheduleSteps(4, 2), [1, 0.5625, 0.25, 0.0625]),
        ("inverse_sqrt", ScheduleSteps(4, 4), [1, 0.7071, 0.5774, 0.5]),
        ("inverse_sqrt", ScheduleSteps(5, 5, 2), [0.5, 1, 0.8165, 0.7071, 0.6325]),
        ("step_decay", ScheduleSteps(5, 2), [1, 1, 0.5, 0.5, 0.25]),
        ("step_decay", ScheduleSteps(5, 2, 3), [0.3333, 0.6667, 1, 0.5, 0.25]),
        ("exponential", ScheduleSteps(3, 1), [1, 0.3679, 0.1353]),
        ("one_cycle", ScheduleSteps(10, 5), [0.25, 0.75, 1, 1, 0.9505, 0.8117, 0.6113, 0.3887, 0.1883, 0.0495]),
        ("warmup_stable_decay", ScheduleSteps(10, 5, 1), [1, 1, 1, 1, 1, 1, 1, 1, 1, 0.5]),
    ],
)
def test_small_runs_written_out(name, plan, expected):
    assert rates(name, plan) == pytest.approx(expected, abs=5e-5)


@pytest.mark.parametrize(
    ("steps", "epoch", "ends"), [(6, 2, [2, 4, 6]), (5, 2, [2, 4, 5]), (2, 2, [2]), (1, 2, [1]), (3, 1, [1, 2, 3])]
)
def test_where_epochs_end(steps, epoch, ends):
    assert ScheduleSteps(steps, epoch).epoch_ends == ends


def test_a_schedule_in_words():
    phases = SCHEDULES["FP_low_epoch_annealing"].phases(ScheduleSteps(120, 60, 10))
    assert (
        describe_phases(phases) == "warmup until step 10, constant until step 60, cosine decay to 0 until step 120"
    )
