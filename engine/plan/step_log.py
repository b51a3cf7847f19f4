"""Log of the steps of a run: loss curve, smoothed loss and step times."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import Any

from ...core.jobs import Step
from ...records.report import RunGraph
from ...train_utils import smooth_loss
from .lr_plan import LrPlan


class StepLog:
    """Collects loss, tokens and time of each step."""

    def __init__(self, steps_per_epoch: int, graph: Sequence[Mapping[str, Any]], smoothed: float | None) -> None:
        self._steps_per_epoch = steps_per_epoch
        self.graph = RunGraph(graph)
        self.smoothed = smoothed
        self._step_start = time.monotonic()
        self._step_end: float | None = None

    def begin_step(self) -> None:
        """Start the clock of a step; the time until now belongs to no step."""
        self._step_start = time.monotonic()

    def exclude_time(self, seconds: float) -> None:
        """Exclude seconds since the last step from the time of the next one."""
        self._step_start += seconds

    def exclude_pause(self, seconds: float) -> None:
        """Exclude a pause from all times, since nothing ran in it."""
        self.exclude_time(seconds)
        self._step_end = None if self._step_end is None else self._step_end + seconds

    def add(
        self,
        step: int,
        loss: float,
        norm: float | None,
        rates: LrPlan,
        tokens: int,
        by_source: Mapping[str, float],
        *,
        phase: str,
        examples: int,
    ) -> Step:
        """Log a finished step."""
        self.smoothed = smooth_loss(self.smoothed, loss)
        now = time.monotonic()
        extra_seconds = 0.0 if self._step_end is None else max(0.0, self._step_start - self._step_end)
        finished = Step(
            step=step,
            steps=rates.steps,
            epoch=step / self._steps_per_epoch,
            loss=loss,
            smoothed=self.smoothed,
            learning_rate=rates.rate(step),
            gradient_norm=norm,
            tokens=tokens,
            seconds=now - self._step_start,
            extra_time=extra_seconds,
            by_source=by_source,
            phase=phase,
            examples=examples,
        )
        self._step_start = self._step_end = now
        self.graph.append(finished)
        return finished

    def rates_used(self) -> list[float]:
        """Learning rates of all steps so far."""
        return [float(entry["learning_rate"]) for entry in self.graph if "learning_rate" in entry]
