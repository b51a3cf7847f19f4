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
    """Starts queued runs: the end of a run makes the next one pending, the end of any job may free the model."""

    def __init__(self) -> None:
        self.lock = threading.RLock()
        """Held while the queue is read and changed."""
        self.enabled = False
        """Whether the next run starts automatically."""
        self.pending = False
        """Whether the next run only waits for the model."""
        self.off_reason = ""
        """Why the next run does not start automatically."""
        self.current_number: int | None = None
        """Queue number of the run that is in progress in this process."""
        self._run_lock = ExitStack()
        self._start_next: StartNext | None = None
        self._record_end: Callable[[Job], None] | None = None

    def set_callbacks(self, start_next: StartNext, record_end: Callable[[Job], None]) -> None:
        """Set the functions that start the next run and that record how a run ended; replaces earlier ones."""
        self._start_next, self._record_end = start_next, record_end

    def set_current(self, number: int, run_lock: ExitStack) -> None:
        """Note that a queued run is in progress; `run_lock` tells other processes so until it ends."""
        self.current_number, self._run_lock = number, run_lock

    def release(self, number: int) -> None:
        """Note that this run is no longer in progress, and release its lock."""
        if number == self.current_number:
            self.current_number = None
            self._run_lock.close()

    def enable(self) -> None:
        """Start each run automatically when the one before has ended."""
        with self.lock:
            self.enabled, self.off_reason = True, ""

    def disable(self, reason: str) -> None:
        """Stop automatic starts; `reason` is shown to the user."""
        with self.lock:
            self.enabled, self.pending, self.off_reason = False, False, reason

    def start_now(self) -> None:
        """Start the next run as soon as the model is free."""
        with self.lock:
            self.enable()
            self.pending = True
        self._start_pending()

    def on_job_end(self, job: Job) -> None:
        """Called in the thread of a job, after it has released the model."""
        if job.kind == "training":
            with self.lock:
                if self._record_end is not None:
                    self._record_end(job)
                if job.control.asked(Request.STOP) and self.enabled:
                    self.disable(f"{job.title} was stopped.")
                self.pending = self.enabled
        self._start_pending()

    def _start_pending(self) -> None:
        with self.lock:
            if not self.pending or self._start_next is None:
                return
            try:
                started = self._start_next()
            except BusyError:  # tried again when that job has ended
                return
            self.pending = False
            self.enabled = self.enabled and started
