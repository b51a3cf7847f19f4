"""Whether a run that waits begins by itself when another has ended; and the moment at which it does."""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import ExitStack

from ..errors import BusyError
from .job import Job

Begin = Callable[[], bool]
"""Begins the next run; whether there was one that could begin. BusyError while another job has the model."""


class Turns:
    """Every job's end is told here: the end of a run makes the next one due, any end may set the model free."""

    def __init__(self) -> None:
        self.changing = threading.RLock()
        """Held by whoever reads the queue to change it."""
        self._number: int | None = None
        self._held = ExitStack()
        self._going = self._due = False
        self._said = ""
        self._begin: Begin | None = None
        self._note: Callable[[Job], None] | None = None

    @property
    def going(self) -> bool:
        """Whether the next one begins by itself."""
        return self._going

    @property
    def due(self) -> bool:
        """Whether it only waits for the model."""
        return self._due

    @property
    def said(self) -> str:
        """Why it does not go on by itself."""
        return self._said

    def take_with(self, begin: Begin, note: Callable[[Job], None]) -> None:
        """`begin` the next one, and `note` how a run ended; whoever was asked earlier is not asked any more."""
        self._begin, self._note = begin, note

    @property
    def number(self) -> int | None:
        """Of the run from the queue that is on its way here."""
        return self._number

    def taken(self, number: int, held: ExitStack) -> None:
        """A run is on its way; what is `held` says so to other programs, until it is done or this one dies."""
        self._number, self._held = number, held

    def let_go(self) -> None:
        """None is on its way any more."""
        self._number = None
        self._held.close()

    def follow(self) -> None:
        """From now on each begins when the one before has ended."""
        with self.changing:
            self._going, self._said = True, ""

    def hold(self, why: str) -> None:
        """Begin none by itself any more."""
        with self.changing:
            self._going, self._due, self._said = False, False, why

    def now(self) -> None:
        """The next one may begin as soon as the model is free."""
        with self.changing:
            self.follow()
            self._due = True
        self._try()

    def ended(self, job: Job) -> None:
        """In the thread of the job, which has given everything back."""
        if job.kind == "training":
            self._after_a_run(job)
        self._try()

    def _after_a_run(self, job: Job) -> None:
        with self.changing:
            if self._note is not None:
                self._note(job)
            if job.control.stopping and self._going:
                self.hold(f"{job.title} was stopped by hand.")
            self._due = self._going

    def _try(self) -> None:
        with self.changing:
            if not self._due or self._begin is None:
                return
            try:
                begun = self._begin()
            except BusyError:  # asked again when that job has ended
                return
            self._due = False
            self._going = self._going and begun
