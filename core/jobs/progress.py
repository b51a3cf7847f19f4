"""How far a run is: one record made from its events, for those who look from another process."""

from __future__ import annotations

import time
from dataclasses import dataclass, replace

from ...train_utils import duration
from ..files import Count, Timestamp
from .control import Request
from .eta import EtaEstimator
from .event_text import event_text
from .events import RunPlanned, Stage, Step
from .job import Job


@dataclass(frozen=True)
class RunProgress:
    """Progress of a run at a time; the figures of its last step are None before the first one."""

    at: Timestamp = 0.0
    model: str = ""
    stage: str = ""
    step: Count = 0
    steps: Count = 0
    epoch: float = 0.0
    loss: float | None = None
    smoothed_loss: float | None = None
    seconds_left: float | None = None
    paused: bool = False


class ProgressReader:
    """Reads the new events of a job whenever it is asked for the progress."""

    def __init__(self, job: Job) -> None:
        self._job, self._position = job, 0
        self._eta, self._progress = EtaEstimator(), RunProgress()

    def read(self) -> RunProgress:
        events = self._job.log.since(self._position)
        self._position += len(events)
        for event in events:
            self._eta.update(event)
            if isinstance(event, RunPlanned):
                self._progress = replace(self._progress, model=event.model, steps=event.steps)
            elif isinstance(event, Stage):
                self._progress = replace(self._progress, stage=event_text(event))
            elif isinstance(event, Step):
                self._add_step(event)
        if self._progress.step:
            self._progress = replace(self._progress, seconds_left=self._eta.seconds_left)
        paused = self._job.control.asked(Request.PAUSE)
        self._progress = replace(self._progress, at=time.time(), paused=paused)
        return self._progress

    def _add_step(self, step: Step) -> None:
        self._progress = replace(
            self._progress,
            step=step.step,
            steps=step.steps,
            epoch=step.epoch,
            loss=step.loss,
            smoothed_loss=step.smoothed,
        )


def progress_text(progress: RunProgress) -> str:
    """'step 12 of 80, epoch 0.15, smoothed loss 2.31, 4 min left', or its stage before the first step."""
    if not progress.step:
        return progress.stage or "starting"
    parts = [f"step {progress.step} of {progress.steps}", f"epoch {progress.epoch:.2f}"]
    if progress.smoothed_loss is not None:
        parts.append(f"smoothed loss {progress.smoothed_loss:.4f}")
    if progress.paused:
        parts.append("paused")
    elif progress.seconds_left is not None:
        parts.append(f"{duration(round(progress.seconds_left))} left")
    return ", ".join(parts)
