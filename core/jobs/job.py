"""A piece of work as everyone sees it who wishes something of it or follows it."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Literal

from .control import RunControl
from .events import Ended, EventLog

Kind = Literal["training", "probe", "answer", "perplexity", "merge", "model", "download"]
Work = Callable[["Job"], Ended]


@dataclass(frozen=True)
class Job:
    """A piece of work, on the model or beside it: its wishes go in by `control`, its news come out by `log`."""

    kind: Kind
    title: str
    control: RunControl[Any] = field(default_factory=RunControl)
    log: EventLog = field(default_factory=EventLog)
    makes: str = ""
    """The name of what a training makes."""

    @property
    def running(self) -> bool:
        return not self.log.closed

    @property
    def end(self) -> Ended | None:
        """How it ended, or None while it runs."""
        if self.running:
            return None
        return next((e for e in reversed(self.log.since(0)) if isinstance(e, Ended)), None)
