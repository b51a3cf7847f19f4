"""The course of a run so far: its curve, its smoothed loss, and how long its last step took."""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from ...core.jobs import Progress
from ...train_utils import smoothed
from .lr_plan import Rates


class Course:
    """Takes in what each step brought."""

    def __init__(self, steps_per_epoch: int, graph: Sequence[Mapping[str, Any]], smoothed: float | None) -> None:
        self._steps_per_epoch = steps_per_epoch
        self.graph = [dict(entry) for entry in graph]
        self.smoothed = smoothed
        self._clock = time.monotonic()
        self._ended: float | None = None
        self._counted = 0
        self.tokens: Callable[[], int] = lambda: 0
        self.by_source: Callable[[], Mapping[str, float]] = dict

    def begin_step(self) -> None:
        """The time until now belongs to no step."""
        self._clock = time.monotonic()

    def leave_out(self, seconds: float) -> None:
        """So much of the time since the last step belongs to none."""
        self._clock += seconds

    def leave_out_pause(self, seconds: float) -> None:
        """So much of it was no work at all."""
        self.leave_out(seconds)
        self._ended = None if self._ended is None else self._ended + seconds

    def add(self, step: int, loss: float, norm: float | None, rates: Rates) -> Progress:
        """A step is done."""
        self.smoothed = smoothed(self.smoothed, loss)
        now, tokens = time.monotonic(), self.tokens()
        seconds, fresh = now - self._clock, tokens - self._counted
        beside = 0.0 if self._ended is None else max(0.0, self._clock - self._ended)
        self._clock, self._counted, self._ended = now, tokens, now
        progress = Progress(
            step=step,
            steps=rates.steps,
            epoch=step / self._steps_per_epoch,
            loss=loss,
            smoothed=self.smoothed,
            learning_rate=rates.rate(step),
            gradient_norm=norm,
            tokens=fresh,
            seconds=seconds,
            beside=beside,
            by_source=self.by_source(),
        )
        self.graph.append(graph_entry(progress))
        return progress

    def rates_used(self) -> list[float]:
        """The learning rate of every step that is done."""
        return [float(entry["learning_rate"]) for entry in self.graph if "learning_rate" in entry]


def graph_entry(progress: Progress) -> dict[str, Any]:
    by_source = {"loss_by_source": dict(progress.by_source)} if progress.by_source else {}
    return {
        "current_steps": progress.step,
        "loss": progress.loss,
        "smoothed_loss": progress.smoothed,
        "learning_rate": progress.learning_rate,
        "epoch": round(progress.epoch, 4),
        "gradient_norm": progress.gradient_norm,
        "tokens": progress.tokens,
        "seconds": round(progress.seconds, 3),
        **by_source,
    }
