"""The learning rate of every step: as it was planned, times a factor, or falling to 0 before its time."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

SHARE_OF_STEPS = 0.1
SHARE = "share"
"""The key in a group of the optimizer: at which share of the learning rate it learns."""


@dataclass(frozen=True)
class WindDown:
    """The last steps of a run that ends before its plan: straight from a share of the rate down to 0."""

    after: int
    steps: int
    share: float

    def at(self, done: int) -> float:
        """The share after so many steps; that of the last step is 0."""
        return self.share * max(0.0, 1.0 - (done + 1 - self.after) / self.steps)


@dataclass(frozen=True)
class Rates:
    """What the optimizer is given; a change takes effect from the next step on."""

    learning_rate: float
    planned: tuple[float, ...]
    factor: float = 1.0
    fall: WindDown | None = None

    @property
    def steps(self) -> int:
        """The run's last step."""
        return self.fall.after + self.fall.steps if self.fall else len(self.planned)

    def share(self, done: int) -> float:
        """The share of the learning rate after so many steps; HF asks once more after the last one."""
        if self.fall:
            return self.fall.at(done)
        return self.planned[min(done, len(self.planned) - 1)] * self.factor

    def rate(self, step: int) -> float:
        """The learning rate that a step (counted from 1) uses."""
        return self.learning_rate * self.share(step - 1)

    def all(self, used: Sequence[float] = ()) -> tuple[float, ...]:
        """Of every step: those that are done as they were, the rest as it is planned now."""
        return (*used, *(self.rate(step) for step in range(len(used) + 1, self.steps + 1)))

    def times(self, factor: float) -> Rates:
        """The same with another factor, also on a fall that has begun."""
        fall = self.fall and replace(self.fall, share=self.fall.share * factor / self.factor)
        return replace(self, factor=factor, fall=fall)

    def winding_down(self, done: int, steps: int = 0) -> Rates:
        """From the rate after so many steps straight to 0, by default over a tenth as many steps again."""
        wanted = steps or max(2, math.ceil(done * SHARE_OF_STEPS))
        left = max(1, min(wanted, self.steps - done))
        return replace(self, fall=WindDown(done, left, self.share(done)))


def fall_of(known: Mapping[str, Any] | None) -> WindDown | None:
    return WindDown(**known) if known else None


def give(rates: Rates, scheduler: Any) -> None:
    """Let a scheduler of torch's, and its optimizer, go by these from the next step on."""
    now = rates.rate(scheduler.last_epoch + 1)
    for group in (groups := scheduler.optimizer.param_groups):
        share = group.get(SHARE, 1.0)  # a checkpoint of an older version has none
        group["initial_lr"], group["lr"] = rates.learning_rate * share, now * share
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    scheduler._last_lr = [group["lr"] for group in groups]
