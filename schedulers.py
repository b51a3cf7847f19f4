"""Learning-rate schedules, each a list of phases; a new one is a curve or a function, and one row in _ALL.

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

# What a phase is called in words, and its multiplier at x, the completed share of the phase (0 to 1).
# The half cosine is that of SGDR (Loshchilov and Hutter, 2016). exp(-3) is 0.0498, hence "5%".
CURVES: Mapping[str, Curve] = {
    "warmup": lambda x: x,
    "constant": lambda x: 1.0,
    "linear decay to 0": lambda x: 1.0 - x,
    "quadratic decay to 0": lambda x: (1.0 - x) ** 2,
    "cosine decay to 0": lambda x: 0.5 * (1.0 + math.cos(math.pi * x)),
    "quarter-cosine decay to 0": lambda x: math.cos(math.pi / 2 * x),
    "exponential decay to 5% of the learning rate": lambda x: math.exp(-3.0 * x),
    "cosine rise": lambda x: 0.5 * (1.0 - math.cos(math.pi * x)),
    "sine rise": lambda x: math.sin(math.pi / 2 * x),
}
RISING = ("warmup", "cosine rise", "sine rise")


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


def _join(*parts: tuple[int, str], start: int = 0) -> list[Phase]:
    """Phases that follow each other, each given by its end and its name in CURVES; empty ones are left out."""
    phases = []
    for end, words in parts:
        if end > start:
            phases.append(Phase(start, end, words, CURVES[words], words in RISING))
            start = end
    return phases


def _after_warmup(words: str) -> Callable[[ScheduleSteps], list[Phase]]:
    return lambda plan: _join((min(plan.warmup, plan.steps), "warmup"), (plan.steps, words))


def _hold_then(plan: ScheduleSteps, hold_end: int, decay: str = "cosine decay to 0") -> list[Phase]:
    warmup_end = min(plan.warmup, hold_end, plan.steps)
    return _join((warmup_end, "warmup"), (hold_end, "constant"), (plan.steps, decay))


def _rise_and_fall(plan: ScheduleSteps, peak: int) -> list[Phase]:
    """Warm-up does not apply, since the schedule itself begins low."""
    return _join((peak, "cosine rise"), (plan.steps, "cosine decay to 0"))


def raise_hold_fall(plan: ScheduleSteps) -> list[Phase]:
    """Up along a sine in epoch 1, constant in epoch 2, then down a quarter of a cosine; thirds below 3 epochs."""
    epoch = plan.steps_per_epoch if plan.steps >= 3 * plan.steps_per_epoch else max(1, plan.steps // 3)
    rise_end, hold_end = min(epoch, plan.steps), min(2 * epoch, plan.steps)
    return _join((rise_end, "sine rise"), (hold_end, "constant"), (plan.steps, "quarter-cosine decay to 0"))


def _halve_each_epoch(plan: ScheduleSteps, warmup: int) -> list[Phase]:
    """In epoch n (from 0) the rate is 1 / 2^n, except in the steps of the warm-up, which rises to 1."""
    phases = _join((min(warmup, plan.steps), "warmup"))
    for n in range(math.ceil(plan.steps / plan.steps_per_epoch)):
        start, end = max(n * plan.steps_per_epoch, warmup), min((n + 1) * plan.steps_per_epoch, plan.steps)
        words = "constant" if n == 0 else "halved once" if n == 1 else f"halved {n} times"
        if end > start:
            phases.append(Phase(start, end, words, _line(0.5**n, 0.5**n)))
    return phases


def inverse_sqrt(plan: ScheduleSteps) -> list[Phase]:
    """After a warm-up of w steps, the square root of w / (s + 1); w is at least 1."""
    # The decay of the Transformer's schedule (Vaswani et al., 2017), scaled so that the warm-up ends at 1.
    warmup_end = min(plan.warmup, plan.steps)
    decay_steps = plan.steps - warmup_end

    def curve(x: float) -> float:
        return math.sqrt(max(1, warmup_end) / (warmup_end + x * decay_steps + 1))

    decay = Phase(warmup_end, plan.steps, "decay in proportion to 1 / sqrt(step)", curve)
    return [*_join((warmup_end, "warmup")), *([decay] if decay_steps else [])]


def cosine_with_restarts(plan: ScheduleSteps) -> list[Phase]:
    """One cosine to 0 in each epoch."""
    # SGDR's restarts; the first cosine begins where the warm-up ends, in whichever epoch that is.
    warmup_end = min(plan.warmup, plan.steps)
    ends = [end for end in plan.epoch_ends if end > warmup_end]
    return _join((warmup_end, "warmup"), *((end, "cosine decay to 0") for end in ends))


def warmup_stable_decay(plan: ScheduleSteps) -> list[Phase]:
    """Constant, then linearly to 0 over the last 20 %."""
    # The schedule of MiniCPM (Hu et al., 2024), whose constant part can be of any length.
    decay_start = max(min(plan.warmup, plan.steps), plan.steps - round(0.2 * plan.steps))
    return _hold_then(plan, decay_start, "linear decay to 0")


@dataclass(frozen=True)
class Schedule:
    """A schedule's public name, its description, and the function that makes its phases."""

    name: str
    words: str
    phases: Callable[[ScheduleSteps], list[Phase]]


# The FP schedules are those of the original extension, by the names that its settings files have.
_ALL = (
    Schedule(
        "FP_low_epoch_annealing",
        "constant for the first epoch, then cosine decay to 0",
        lambda plan: _hold_then(plan, min(plan.steps_per_epoch, plan.steps)),
    ),
    Schedule(
        "FP_half_time_annealing",
        "constant for half of the run, then cosine decay to 0",
        lambda plan: _hold_then(plan, max(1, plan.steps // 2)),
    ),
    Schedule(
        "FP_raise_fall_creative",
        "rises until the middle of the run, then falls",
        lambda plan: _rise_and_fall(plan, max(1, plan.steps // 2)),
    ),
    Schedule(
        "FP_3epoch_raise_hold_fall", "rises in epoch 1, stays constant in epoch 2, then falls", raise_hold_fall
    ),
    Schedule(
        "FP_step_decay_with_warmup",
        "constant in epoch 1, then halved at the start of each later epoch",
        lambda plan: _halve_each_epoch(plan, min(plan.warmup, plan.steps_per_epoch)),
    ),
    Schedule("constant", "the same rate for the whole run", _after_warmup("constant")),
    Schedule("linear", "linear decay to 0", _after_warmup("linear decay to 0")),
    Schedule("cosine", "cosine decay to 0", _after_warmup("cosine decay to 0")),
    Schedule("cosine_with_restarts", "cosine decay to 0 in every epoch", cosine_with_restarts),
    Schedule("polynomial", "quadratic decay to 0", _after_warmup("quadratic decay to 0")),
    Schedule("inverse_sqrt", "decay in proportion to 1 / sqrt(step)", inverse_sqrt),
    Schedule("step_decay", "halved after each epoch", lambda plan: _halve_each_epoch(plan, plan.warmup)),
    Schedule(
        "exponential",
        "exponential decay to 5% of the learning rate",
        _after_warmup("exponential decay to 5% of the learning rate"),
    ),
    # Smith and Topin (2017); a rise of 30 % is the default of torch's OneCycleLR.
    Schedule(
        "one_cycle",
        "rises over the first 30% of the run, then falls to 0",
        lambda plan: _rise_and_fall(plan, max(1, round(0.3 * plan.steps))),
    ),
    Schedule(
        "warmup_stable_decay", "constant, then linear decay to 0 over the last 20% of the run", warmup_stable_decay
    ),
)
SCHEDULES: Mapping[str, Schedule] = MappingProxyType({s.name: s for s in _ALL})


def get_schedule(name: str) -> Schedule:
    """A schedule by its name, or a piecewise linear one from points: '0:0 0.05:1 0.5:1 1:0'."""
    if name in SCHEDULES:
        return SCHEDULES[name]
    points = parse_points(name)
    return Schedule(name, "straight lines between your own points", lambda plan: _join_points(points, plan))


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
    parsed: list[Point] = []
    for part in text.split():
        place, colon, rate = part.partition(":")
        in_epochs = place.endswith("e")
        try:
            point = Point(float(place.removesuffix("e")), float(rate), in_epochs)
        except ValueError:
            point = Point(-1, -1)
        if not colon or not 0 <= point.place <= (1000 if in_epochs else 1) or not 0 <= point.rate <= 10:
            raise ValueError(
                f"{part!r} is neither the name of a schedule nor a point. A point is a position and a factor for "
                "the learning rate: 0.5:1 is the full learning rate in the middle of the run, and 2e:0 is a "
                "learning rate of 0 at the end of epoch 2."
            )
        parsed.append(point)
    if not parsed:
        raise ValueError("no schedule is chosen. Choose one, or enter points such as 0:0 0.05:1 0.5:1 1:0.")
    for previous, point in pairwise(parsed):
        if previous.in_epochs == point.in_epochs and point.place < previous.place:
            raise ValueError(
                f"the point at {point.place:g} is listed after the point at {previous.place:g}. Swap them."
            )
    return parsed


def find_crossed_points(name: str, plan: ScheduleSteps) -> Iterator[str]:
    """Problems of points whose order changes once shares and epochs are converted to steps."""
    for previous, point in pairwise(() if name in SCHEDULES else parse_points(name)):
        if point.step(plan) < previous.step(plan):
            yield (
                f"the point {point} is at step {point.step(plan)} but is listed after {previous}, which is at "
                f"step {previous.step(plan)} of {plan.steps}. Swap them, or move one of them."
            )


def _join_points(points: Sequence[Point], plan: ScheduleSteps) -> list[Phase]:
    """A straight line between each two points; before the first and after the last one, the rate stays."""
    ordered = sorted(points, key=lambda point: point.step(plan))  # with more epochs, their order may change
    corners = [(0, ordered[0].rate), *((point.step(plan), point.rate) for point in ordered)]
    phases = []
    for (start, rate), (end, end_rate) in pairwise([*corners, (plan.steps, ordered[-1].rate)]):
        words = f"constant at {100 * rate:g}% of the learning rate"
        if rate != end_rate:
            direction = "rise" if end_rate > rate else "decay"
            words = f"linear {direction} to {100 * end_rate:g}% of the learning rate"
        if end > start and start < plan.steps:
            phases.append(Phase(start, end, words, _line(rate, end_rate), rising=end_rate > rate))
    return phases


def _line(rate: float, end_rate: float) -> Curve:
    return lambda x: rate + (end_rate - rate) * x


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
