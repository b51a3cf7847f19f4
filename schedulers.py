"""Learning-rate schedules, each a list of phases; a new one is one function and one row in SCHEDULES.

Steps s of N are counted from 0. A rising phase is evaluated at s + 1, so that no step has rate 0; a falling one at
s, so that it begins at the peak. Steps outside all phases (after the last one) keep the last value.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from types import MappingProxyType

Curve = Callable[[float], float]


@dataclass(frozen=True)
class ScheduleSteps:
    """The lengths that a schedule depends on: all steps, the steps of an epoch, the steps of warm-up."""

    steps: int
    steps_per_epoch: int
    warmup: int = 0

    @property
    def epoch_ends(self) -> list[int]:
        """The steps after which an epoch ends; the end of the run may cut the last epoch short."""
        ends = list(range(self.steps_per_epoch, self.steps, self.steps_per_epoch))
        return [*ends, self.steps]


@dataclass(frozen=True)
class Phase:
    """Steps `start` to `end` - 1; `curve` maps the completed share of the phase, 0 to 1, to a multiplier."""

    start: int
    end: int
    words: str
    curve: Curve
    rising: bool = False

    def at(self, step: int) -> float:
        length = self.end - self.start
        completed = step - self.start + (1 if self.rising else 0)
        return self.curve(min(completed, length) / length)


def hold(_: float) -> float:
    return 1.0


def constant_curve(rate: float) -> Curve:
    return lambda _: rate


def linear_up(x: float) -> float:
    return x


def linear_down(x: float) -> float:
    return 1.0 - x


def cosine_down(x: float) -> float:
    return 0.5 * (1.0 + math.cos(math.pi * x))


def quadratic_down(x: float) -> float:
    return (1.0 - x) ** 2


def exponential_down(x: float) -> float:
    return math.exp(-3.0 * x)


def cosine_up(x: float) -> float:
    return 0.5 * (1.0 - math.cos(math.pi * x))


def _with_warmup(plan: ScheduleSteps, *rest: Phase, limit: int | None = None) -> list[Phase]:
    """A linear warm-up before the other phases, without empty phases."""
    warmup_end = _warmup_end(plan, limit)
    phases = [Phase(0, warmup_end, "warmup", linear_up, rising=True), *rest]
    return [p for p in phases if p.end > p.start]


def _warmup_end(plan: ScheduleSteps, limit: int | None = None) -> int:
    return min(plan.warmup, plan.steps if limit is None else min(limit, plan.steps))


def _hold_then_cosine(plan: ScheduleSteps, hold_end: int) -> list[Phase]:
    warmup_end = _warmup_end(plan, hold_end)
    return _with_warmup(
        plan,
        Phase(warmup_end, hold_end, "constant", hold),
        Phase(hold_end, plan.steps, "cosine decay to 0", cosine_down),
        limit=hold_end,
    )


def low_epoch_annealing(plan: ScheduleSteps) -> list[Phase]:
    """Constant in the first epoch, then a cosine to 0 over the rest; a single epoch stays constant."""
    return _hold_then_cosine(plan, min(plan.steps_per_epoch, plan.steps))


def half_time_annealing(plan: ScheduleSteps) -> list[Phase]:
    """Constant in the first half of all steps, then a cosine to 0."""
    return _hold_then_cosine(plan, max(1, plan.steps // 2))


def raise_fall_creative(plan: ScheduleSteps) -> list[Phase]:
    """Up along a cosine to the peak at half of all steps, then down; warm-up does not apply."""
    half = max(1, plan.steps // 2)
    up = Phase(0, half, "cosine rise", cosine_up, rising=True)
    return [p for p in (up, Phase(half, plan.steps, "cosine decay to 0", cosine_down)) if p.end > p.start]


def raise_hold_fall(plan: ScheduleSteps) -> list[Phase]:
    """Up along a sine in epoch 1, constant in epoch 2, then down a quarter of a cosine; thirds below 3 epochs."""
    epoch = plan.steps_per_epoch
    if plan.steps < 3 * epoch:
        epoch = max(1, plan.steps // 3)
    rise_end, hold_end = min(epoch, plan.steps), min(2 * epoch, plan.steps)
    phases = [
        Phase(0, rise_end, "sine rise", lambda x: math.sin(math.pi / 2 * x), rising=True),
        Phase(rise_end, hold_end, "constant", hold),
        Phase(
            hold_end,
            plan.steps,
            "quarter-cosine decay to 0",
            lambda x: math.cos(math.pi / 2 * x),
        ),
    ]
    return [p for p in phases if p.end > p.start]


def _halving_phases(plan: ScheduleSteps, warmup_end: int) -> list[Phase]:
    epoch = plan.steps_per_epoch
    phases = [Phase(warmup_end, min(epoch, plan.steps), "constant", hold)]
    for n in range(1, math.ceil(plan.steps / epoch)):
        end = min((n + 1) * epoch, plan.steps)
        phases.append(Phase(n * epoch, end, _halved(n), constant_curve(0.5**n)))
    return [p for p in phases if p.end > p.start]


def _halved(times: int) -> str:
    return "halved once" if times == 1 else f"halved {times} times"


def step_decay_with_warmup(plan: ScheduleSteps) -> list[Phase]:
    """Warm-up and constant in epoch 1, then halved in each epoch."""
    limit = min(plan.steps_per_epoch, plan.steps)
    return _with_warmup(plan, *_halving_phases(plan, _warmup_end(plan, limit)), limit=limit)


def step_decay(plan: ScheduleSteps) -> list[Phase]:
    """Halved after each epoch."""
    warmup_end = _warmup_end(plan)
    decay = [p for p in _halving_phases(plan, 0) if p.end > warmup_end]
    return _with_warmup(plan, *[Phase(max(p.start, warmup_end), p.end, p.words, p.curve) for p in decay])


def _after_warmup(words: str, curve: Curve) -> Callable[[ScheduleSteps], list[Phase]]:
    def phases(plan: ScheduleSteps) -> list[Phase]:
        return _with_warmup(plan, Phase(_warmup_end(plan), plan.steps, words, curve))

    return phases


def inverse_sqrt(plan: ScheduleSteps) -> list[Phase]:
    """After a warm-up of w steps, the square root of w / (s + 1); w is at least 1."""
    warmup_end = _warmup_end(plan)
    decay_steps = plan.steps - warmup_end

    def curve(x: float) -> float:
        return math.sqrt(max(1, warmup_end) / (warmup_end + x * decay_steps + 1))

    return _with_warmup(plan, Phase(warmup_end, plan.steps, "decay in proportion to 1 / sqrt(step)", curve))


def cosine_with_restarts(plan: ScheduleSteps) -> list[Phase]:
    """One cosine to 0 in each epoch."""
    warmup_end = _warmup_end(plan)
    starts = [warmup_end, *(e for e in plan.epoch_ends if warmup_end < e < plan.steps)]
    ends = [*starts[1:], plan.steps]
    falls = [Phase(a, b, "cosine decay to 0", cosine_down) for a, b in zip(starts, ends, strict=True)]
    return _with_warmup(plan, *falls)


def one_cycle(plan: ScheduleSteps) -> list[Phase]:
    """Up along a cosine over 30 % of the run, then down along one to 0; warm-up does not apply."""
    peak = max(1, round(0.3 * plan.steps))
    up = Phase(0, peak, "cosine rise", cosine_up, rising=True)
    return [p for p in (up, Phase(peak, plan.steps, "cosine decay to 0", cosine_down)) if p.end > p.start]


def warmup_stable_decay(plan: ScheduleSteps) -> list[Phase]:
    """Constant, then linearly to 0 over the last 20 %."""
    warmup_end = _warmup_end(plan)
    decay_start = max(warmup_end, plan.steps - round(0.2 * plan.steps))
    return _with_warmup(
        plan,
        Phase(warmup_end, decay_start, "constant", hold),
        Phase(decay_start, plan.steps, "linear decay to 0", linear_down),
    )


@dataclass(frozen=True)
class Schedule:
    """A schedule's public name, its description, and the function that makes its phases."""

    name: str
    words: str
    phases: Callable[[ScheduleSteps], list[Phase]]


_ALL = (
    Schedule(
        "FP_low_epoch_annealing", "constant for the first epoch, then cosine decay to 0", low_epoch_annealing
    ),
    Schedule(
        "FP_half_time_annealing", "constant for half of the run, then cosine decay to 0", half_time_annealing
    ),
    Schedule("FP_raise_fall_creative", "rises until the middle of the run, then falls", raise_fall_creative),
    Schedule(
        "FP_3epoch_raise_hold_fall", "rises in epoch 1, stays constant in epoch 2, then falls", raise_hold_fall
    ),
    Schedule(
        "FP_step_decay_with_warmup",
        "constant in epoch 1, then halved at the start of each later epoch",
        step_decay_with_warmup,
    ),
    Schedule("constant", "the same rate for the whole run", _after_warmup("constant", hold)),
    Schedule("linear", "linear decay to 0", _after_warmup("linear decay to 0", linear_down)),
    Schedule("cosine", "cosine decay to 0", _after_warmup("cosine decay to 0", cosine_down)),
    Schedule("cosine_with_restarts", "cosine decay to 0 in every epoch", cosine_with_restarts),
    Schedule("polynomial", "quadratic decay to 0", _after_warmup("quadratic decay to 0", quadratic_down)),
    Schedule("inverse_sqrt", "decay in proportion to 1 / sqrt(step)", inverse_sqrt),
    Schedule("step_decay", "halved after each epoch", step_decay),
    Schedule(
        "exponential",
        "exponential decay to 5% of the learning rate",
        _after_warmup("exponential decay to 5% of the learning rate", exponential_down),
    ),
    Schedule("one_cycle", "rises over the first 30% of the run, then falls to 0", one_cycle),
    Schedule(
        "warmup_stable_decay", "constant, then linear decay to 0 over the last 20% of the run", warmup_stable_decay
    ),
)
SCHEDULES: Mapping[str, Schedule] = MappingProxyType({s.name: s for s in _ALL})


def get_schedule(name: str) -> Schedule:
    """A schedule by its name, or a piecewise linear one from points: '0:0 0.05:1 0.5:1 1:0'."""
    return SCHEDULES.get(name) or Schedule(
        name, "straight lines between your own points", _piecewise_linear(parse_points(name))
    )


@dataclass(frozen=True)
class Point:
    """A share of the learning rate at a place: a share of the run, or the end of an epoch."""

    place: float
    rate: float
    in_epochs: bool = False

    def __str__(self) -> str:
        return f"{self.place:g}{'e' if self.in_epochs else ''}:{self.rate:g}"

    def step(self, plan: ScheduleSteps) -> int:
        return round(self.place * (plan.steps_per_epoch if self.in_epochs else plan.steps))


def parse_points(text: str) -> list[Point]:
    """Parse points; a ValueError says which one is malformed, and the correct form."""
    parsed = [_parse_point(part) for part in text.split()]
    if not parsed:
        raise ValueError("no schedule is chosen. Choose one, or enter points such as 0:0 0.05:1 0.5:1 1:0.")
    for previous, point in pairwise(parsed):
        if previous.in_epochs == point.in_epochs and point.place < previous.place:
            raise ValueError(
                f"the point at {point.place:g} is listed after the point at {previous.place:g}. Swap them."
            )
    return parsed


def _parse_point(part: str) -> Point:
    place, colon, rate = part.partition(":")
    in_epochs = place.endswith("e")
    try:
        point = Point(float(place.removesuffix("e")), float(rate), in_epochs)
    except ValueError:
        point = Point(-1, -1)
    if not colon or not 0 <= point.place <= (1000 if in_epochs else 1) or not 0 <= point.rate <= 10:
        raise ValueError(
            f"{part!r} is neither the name of a schedule nor a point. A point is a position and a factor for the "
            "learning rate: 0.5:1 is the full learning rate in the middle of the run, and 2e:0 is a learning rate "
            "of 0 at the end of epoch 2."
        )
    return point


def find_crossed_points(name: str, plan: ScheduleSteps) -> Iterator[str]:
    """Problems of points whose order changes once shares and epochs are converted to steps."""
    for previous, point in pairwise(() if name in SCHEDULES else parse_points(name)):
        if point.step(plan) < previous.step(plan):
            yield (
                f"the point {point} is at step {point.step(plan)} but is listed after {previous}, which is at "
                f"step {previous.step(plan)} of {plan.steps}. Swap them, or move one of them."
            )


def _piecewise_linear(places: Sequence[Point]) -> Callable[[ScheduleSteps], list[Phase]]:
    def phases(plan: ScheduleSteps) -> list[Phase]:
        ordered = sorted(places, key=lambda point: point.step(plan))  # with more epochs, their order may change
        first, last = ordered[0], ordered[-1]
        parts = [
            Phase(
                0,
                first.step(plan),
                f"constant at {100 * first.rate:g}% of the learning rate",
                constant_curve(first.rate),
            )
        ]
        parts += [
            _linear_phase(start.step(plan), start.rate, end.step(plan), end.rate)
            for start, end in pairwise(ordered)
        ]
        words = f"constant at {100 * last.rate:g}% of the learning rate"
        parts.append(Phase(last.step(plan), plan.steps, words, constant_curve(last.rate)))
        return [p for p in parts if p.end > p.start and p.start < plan.steps]

    return phases


def _linear_phase(start: int, rate: float, end: int, end_rate: float) -> Phase:
    words = (
        f"constant at {100 * rate:g}% of the learning rate"
        if rate == end_rate
        else f"linear {'rise' if end_rate > rate else 'decay'} to {100 * end_rate:g}% of the learning rate"
    )
    return Phase(start, end, words, lambda x: rate + (end_rate - rate) * x, rising=end_rate > rate)


def schedule_problem(name: str) -> str:
    """Why this is neither the name of a schedule nor points; empty where it is one."""
    try:
        return "" if name in SCHEDULES or parse_points(name) else "it is empty."
    except ValueError as error:
        return str(error)


def lr_multipliers(phases: Sequence[Phase], steps: int) -> list[float]:
    """The share of the learning rate for each step."""
    starts = [p.start for p in phases]
    return [phases[max(0, bisect_right(starts, s) - 1)].at(s) for s in range(steps)]


def describe_phases(phases: Sequence[Phase]) -> str:
    """The phases in words, with their steps: 'warmup until step 10, constant until step 60'."""
    return ", ".join(f"{p.words} until step {p.end}" for p in phases)
