"""Automatic start of the next queued run when a run ends."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from ..errors import BusyError
from .control import Request
from .job import Job

StartNext = Callable[[], bool]
"""Starts the next run; returns whether one was started. Raises BusyError while another job uses the model."""


class AutoStart:
    """Starts queued runs: the end of a run makes the next one due, the end of any job may free the model."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        """Held while the queue is read and changed."""
        self._number: int | None = None
        self._lock = ExitStack()
        self._is_automatic = self._is_due = False
        self._reason = ""
        self._begin: StartNext | None = None
        self._note: Callable[[Job], None] | None = None

    @property
    def going(self) -> bool:
        """Whether the next run starts automatically."""
        return self._is_automatic

    @property
    def due(self) -> bool:
        """Whether the next run only waits for the model."""
        return self._is_due

    @property
    def said(self) -> str:
        """Why the next run does not start automatically."""
        return self._reason

    def take_with(self, begin: StartNext, note: Callable[[Job], None]) -> None:
        """Set the functions that start the next run and that record how a run ended; replaces earlier ones."""
        self._begin, self._note = begin, note

    @property
    def number(self) -> int | None:
        """Queue number of the run that is in progress in this process."""
        return self._number

    def taken(self, number: int, lock: ExitStack) -> None:
        """Note that a queued run is in progress; `lock` tells other processes so until it ends."""
        self._number, self._lock = number, lock

    def let_go(self) -> None:
        """Note that no queued run is in progress, and release its lock."""
        self._number = None
        self._lock.close()

    def follow(self) -> None:
        """Start each run automatically when the one before has ended."""
        with self.changing:
            self._is_automatic, self._reason = True, ""

    def hold(self, why: str) -> None:
        """Stop automatic starts; `why` is shown to the user."""
        with self.changing:
            self._is_automatic, self._is_due, self._reason = False, False, why

    def now(self) -> None:
        """Start the next run as soon as the model is free."""
        with self.changing:
            self.follow()
            self._is_due = True
        self._start_if_due()

    def ended(self, job: Job) -> None:
        """Note the end of a job; called in its thread, after it has released the model."""
        if job.kind == "training":
            self._note_run_end(job)
        self._start_if_due()

    def _note_run_end(self, job: Job) -> None:
        with self.changing:
            if self._note is not None:
                self._note(job)
            if job.control.asked(Request.STOP) and self._is_automatic:
                self.hold(f"{job.title} was stopped by hand.")
            self._is_due = self._is_automatic

    def _start_if_due(self) -> None:
        with self.changing:
            if not self._is_due or self._begin is None:
                return
            try:
                started = self._begin()
            except BusyError:  # tried again when that job has ended
                return
            self._is_due = False
            self._is_automatic = self._is_automatic and started
