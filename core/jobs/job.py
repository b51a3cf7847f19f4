"""A job: one piece of work with its control and its event log."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .control import RunControl
from .events import EventLog, JobEnded

JobKind = Literal["training", "probe", "answer", "perplexity", "recall", "evidence", "merge", "model", "download"]
JobFn = Callable[["Job"], JobEnded]


@dataclass(frozen=True)
class Job:
    """One piece of work, on the model or not: `control` takes requests, `log` holds its events."""

    kind: JobKind
    title: str
    control: RunControl[Any] = field(default_factory=RunControl)
    log: EventLog = field(default_factory=EventLog)
    result_name: str = ""
    """Name of the LoRA or model that a training makes."""
    queue_number: int | None = None
    """Number of the queued run that this job trains."""

    @property
    def running(self) -> bool:
        return not self.log.closed

    @property
    def end(self) -> JobEnded | None:
        """The last event, or None while the job runs."""
        if self.running:
            return None
        return next((e for e in reversed(self.log.since(0)) if isinstance(e, JobEnded)), None)
