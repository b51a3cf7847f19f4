"""Learning rate of every step: the planned schedule, times a factor, or winding down to 0 early."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

WIND_DOWN_RATIO = 0.1
LR_SHARE_KEY = "share"
"""Key in an optimizer group: its share of the learning rate."""


@dataclass(frozen=True)
class WindDown:
    """Last steps of a run that ends early: linear from a share of the learning rate to 0."""

    after: int
    steps: int
    share: float

    def at(self, done: int) -> float:
        """Share after `done` steps; 0 for the last step."""
        return self.share * max(0.0, 1.0 - (done + 1 - self.after) / self.steps)


@dataclass(frozen=True)
class LrPlan:
    """Learning rates of a run; a change takes effect at the next step."""

    learning_rate: float
    planned: tuple[float, ...]
    factor: float = 1.0
    wind_down: WindDown | None = None

    @property
    def steps(self) -> int:
        """Last step of the run."""
        return self.wind_down.after + self.wind_down.steps if self.wind_down else len(self.planned)

    def share(self, done: int) -> float:
        """Share of the learning rate after `done` steps; HF asks once more after the last one."""
        if self.wind_down:
            return self.wind_down.at(done)
        return self.planned[min(done, len(self.planned) - 1)] * self.factor

    def rate(self, step: int) -> float:
        """Learning rate of a step, counted from 1."""
        return self.learning_rate * self.share(step - 1)

    def all(self, used: Sequence[float] = ()) -> tuple[float, ...]:
        """Learning rates of all steps: those already used, then the current plan."""
        return (*used, *(self.rate(step) for step in range(len(used) + 1, self.steps + 1)))

    def scaled(self, factor: float) -> LrPlan:
        """Copy with another factor, which also applies to a wind-down that has begun."""
        fall = self.wind_down and replace(self.wind_down, share=self.wind_down.share * factor / self.factor)
        return replace(self, factor=factor, wind_down=fall)

    def winding_down(self, done: int, steps: int = 0) -> LrPlan:
        """Copy that winds down linearly to 0 after `done` steps, by default over a tenth as many steps."""
        length = steps or max(2, math.ceil(done * WIND_DOWN_RATIO))
        remaining = max(1, min(length, self.steps - done))
        return replace(self, wind_down=WindDown(done, remaining, self.share(done)))


def load_wind_down(state: Mapping[str, Any] | None) -> WindDown | None:
    return WindDown(**state) if state else None


def apply_to_scheduler(rates: LrPlan, scheduler: Any) -> None:
    """Apply the rates to a torch scheduler and its optimizer from the next step on."""
    rate = rates.rate(scheduler.last_epoch + 1)
    for group in (groups := scheduler.optimizer.param_groups):
        share = group.get(LR_SHARE_KEY, 1.0)  # a checkpoint of an older version has none
        group["initial_lr"], group["lr"] = rates.learning_rate * share, rate * share
    scheduler.base_lrs = [group["initial_lr"] for group in groups]
    scheduler._last_lr = [group["lr"] for group in groups]
