"""A job with the log of its events, which any number of pages can follow, and its control: requests of the user.

The training thread reads the requests between two steps. The log of a run is a file, too: see `event_file`.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, field
from enum import Enum, auto
from typing import Any, Literal

from .event_file import EventFile
from .events import Event, JobEnded

JobKind = Literal[
    "training", "probe", "answer", "perplexity", "recall", "evidence", "pairs", "merge", "model", "download",
    "environment", "study", "dataset", "cleaning", "map",
]  # fmt: skip
JobFn = Callable[["Job"], JobEnded]
# Windows handles Ctrl+C only between two waits, so no wait is longer.
POLL_SECONDS = 1.0


class Request(Enum):
    """What the user asks of a run; it is carried out after the current step."""

    STOP = auto()  # and save the LoRA
    DISCARD = auto()  # stop, discard the LoRA and restore what was there before the run
    PAUSE = auto()  # the model stays in memory
    FREE_MEMORY = auto()  # save a checkpoint, unload the model and pause
    CHECKPOINT = auto()
    SAMPLE = auto()
    EVALUATE = auto()
    WIND_DOWN = auto()  # let the learning rate fall to 0 in a few steps, then finish
    MORE_EPOCHS = auto()  # see `RunControl.extend`


_INCLUDED = {Request.DISCARD: Request.STOP, Request.FREE_MEMORY: Request.PAUSE}


class RunControl:
    """Requests to a run: made by any page, taken in the training thread between two steps."""

    def __init__(self) -> None:
        # Sends a request, or new live settings, to the process that trains, if it is another one.
        self.forward: Callable[[str, Any], None] | None = None
        self._live: Any = None
        self._requests: set[Request] = set()
        self._more_epochs = 0.0
        self._changed = threading.Condition()

    @property
    def live(self) -> Any:
        """The frozen dataclass of the live settings, replaced as a whole; None before the run has set it."""
        return self._live

    @live.setter
    def live(self, live: Any) -> None:
        if self.forward is not None:
            self.forward("LIVE", live.values())
        self._live = live

    def follow(self, pending: Iterable[Request] | None = None, live: Any = None) -> None:
        """Take over the state of the control in the process that trains."""
        with self._changed:
            self._requests = self._requests if pending is None else set(pending)
            self._live = self._live if live is None else live

    def ask(self, request: Request) -> None:
        """Make a request; asking again before it is taken counts once. A stop ends a pause."""
        if self.forward is not None:
            self.forward(request.name, None)
        # A run that is to end must not wait for the user first.
        with self._changed:
            self._requests |= {request, _INCLUDED.get(request, request)}
            if request in (Request.STOP, Request.DISCARD):
                self._requests.discard(Request.PAUSE)
            self._changed.notify_all()

    def asked(self, request: Request) -> bool:
        return request in self._requests

    @property
    def pending(self) -> frozenset[Request]:
        """All requests that are not taken yet."""
        with self._changed:
            return frozenset(self._requests)

    def take(self, request: Request) -> bool:
        """Return whether it was asked for, and clear it."""
        with self._changed:
            asked = request in self._requests
            self._requests.discard(request)
            return asked

    def extend(self, epochs: float) -> None:
        """Ask for more epochs; several calls add up."""
        if self.forward is not None:
            self.forward(Request.MORE_EPOCHS.name, epochs)
        with self._changed:
            self._more_epochs += epochs
            self._requests.add(Request.MORE_EPOCHS)

    def take_epochs(self) -> float:
        """Return the requested extra epochs, 0 for none, and clear them."""
        with self._changed:
            self._requests.discard(Request.MORE_EPOCHS)
            epochs, self._more_epochs = self._more_epochs, 0.0
            return epochs

    def resume(self) -> None:
        """End a pause, also one that would free the memory."""
        if self.forward is not None:
            self.forward("RESUME", None)
        with self._changed:
            self._requests -= {Request.PAUSE, Request.FREE_MEMORY}
            self._changed.notify_all()

    def wait_while_paused(self) -> bool:
        """Block the training thread until the run may continue or has to free its memory.

        Returns True, and clears the request, if it is to save a checkpoint first, and then to wait again.
        """

        def is_paused() -> bool:
            return self.asked(Request.PAUSE) and not self.asked(Request.FREE_MEMORY)

        with self._changed:
            self._changed.wait_for(lambda: not is_paused() or self.asked(Request.CHECKPOINT))
            return is_paused() and self.take(Request.CHECKPOINT)


class EventLog:
    """Log with one writer and any number of readers; a reader never blocks the writer."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self.closed = False
        self._changed = threading.Condition()
        self._file: EventFile | None = None

    def __len__(self) -> int:
        return len(self._events)

    def append(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            if self._file is not None:
                self._file.append(event)
            self._changed.notify_all()

    def write_to(self, file: EventFile) -> None:
        """Write all events to a file, those so far and those to come."""
        with self._changed:
            self._file = file
            for event in self._events:
                file.append(event)

    def close(self) -> None:
        with self._changed:
            self.closed = True
            self._changed.notify_all()

    def wait_closed(self) -> None:
        """Wait until the log is closed."""
        with self._changed:
            while not self.closed:
                self._changed.wait(POLL_SECONDS)

    def since(self, position: int) -> list[Event]:
        """The events from `position` on, without waiting."""
        with self._changed:
            return self._events[position:]

    def follow(self) -> Iterator[Event]:
        """Yield every event, from the first on, until the log is closed."""
        position = 0
        while True:
            # The events are handed out after the lock is released: a slow reader must not hold up the training.
            with self._changed:
                if not self.closed and len(self._events) == position:
                    self._changed.wait(POLL_SECONDS)
                events, closed = self._events[position:], self.closed
            yield from events
            position += len(events)
            if closed and position == len(self._events):
                return


@dataclass(frozen=True)
class Job:
    """One piece of work, on the model or not: `control` takes requests, `log` holds its events."""

    kind: JobKind
    title: str
    control: RunControl = field(default_factory=RunControl)
    log: EventLog = field(default_factory=EventLog)
    result_name: str = ""  # of the LoRA or model that a training makes
    queue_number: int | None = None  # of the queued run that this job trains

    @property
    def running(self) -> bool:
        return not self.log.closed

    @property
    def end(self) -> JobEnded | None:
        """The last event, or None while the job runs."""
        if self.running:
            return None
        return next((e for e in reversed(self.log.since(0)) if isinstance(e, JobEnded)), None)
