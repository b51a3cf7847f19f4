"""Console output of a job: its events as lines of text and, on a terminal, its progress as a bar."""

from __future__ import annotations

import shutil
import threading
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from typing import Any, TextIO

from ...train_utils import duration, format_digits, is_logged, time_of_day
from .event_words import event_text
from .events import DownloadProgress, Event, JobEnded, LibraryMessage, MachineUse, RunPlanned, Stage, Step
from .job import Job
from .progress import EtaEstimator

WriteLine = Callable[[str], object]
LINE_SECONDS, MACHINE_LINE_SECONDS = 10.0, 60.0
BAR_SECONDS, BAR_WIDTH = 0.1, 20
DEVELOPER_WARNINGS = ("FutureWarning: ", "DeprecationWarning: ")  # nothing that a user could act on


class EventPrinter:
    """Writes events as lines: a step and a download every ten seconds, and the last of each.

    The settings of a run may ask for every n-th step instead. Once a minute, the line of a step ends with the use
    of the machine. On a `terminal`, the progress is a bar below the lines that overwrites itself; then only steps
    that the settings ask for have a line.
    """

    def __init__(self, write: WriteLine, terminal: TextIO | None = None) -> None:
        self._write, self._terminal = write, terminal
        self._drawn, self._drawn_at = "", float("-inf")
        self._pace = EtaEstimator()
        self._last_shown = self._machine_shown = float("-inf")
        self._messages: set[str] = set()
        self._machine: MachineUse | None = None
        self._settings: Mapping[str, Any] = {}

    def line(self, event: Event) -> str:
        """The line of an event; empty if it is not shown."""
        self._pace.update(event)
        text = event_text(event)
        if isinstance(event, RunPlanned):
            self._settings = event.settings
        elif isinstance(event, MachineUse):
            self._machine, text = event, ""
        elif isinstance(event, Stage):
            text = text if self._terminal is None else ""
        elif isinstance(event, DownloadProgress):
            text = text if self._is_due(event, event.done >= event.total) else ""
        elif isinstance(event, Step):
            every, first = self._settings.get("logging_steps"), self._settings.get("logging_first_step", True)
            if isinstance(every, (int, float)) and every > 0:
                is_due = is_logged(event.step, event.steps, every, bool(first))
            else:
                is_due = self._is_due(event, event.step == event.steps)
            text = ""
            if is_due:
                text = (
                    f"step {event.step}/{event.steps}  epoch {event.epoch:.2f}  loss {event.loss:.4f} "
                    f"(smoothed {event.smoothed:.4f})  learning rate {format_digits(event.learning_rate)}  "
                    f"{self._pace.tokens_per_second:.0f} tokens/s  {self._time_left(event.at)}"
                )
                if self._machine is not None and event.at - self._machine_shown >= MACHINE_LINE_SECONDS:
                    self._machine_shown = event.at
                    text = f"{text}  {event_text(self._machine)}"
        elif isinstance(event, LibraryMessage):  # the further lines of a warning quote the library's source
            text = event.text.partition("\n")[0]
            if text in self._messages or any(sign in text for sign in DEVELOPER_WARNINGS):
                return ""
            self._messages.add(text)
        elif isinstance(event, JobEnded):
            text = "\n".join(filter(None, (text, event.details)))
        return text

    def _is_due(self, event: Event, is_last: bool) -> bool:
        if self._terminal is not None or (event.at - self._last_shown < LINE_SECONDS and not is_last):
            return False
        self._last_shown = event.at
        return True

    def _time_left(self, now: float) -> str:
        """Time left and, if it is more than a minute, the time of day of the end."""
        seconds = self._pace.seconds_left
        end = f", ends at about {time_of_day(now + seconds, now)}" if seconds > 60 else ""
        return f"{duration(round(seconds))} left{end}"

    def print_event(self, event: Event) -> None:
        if line := self.line(event):
            text = line.replace("\n", "\n          ")  # indented to the text of the first line
            bar = self._drawn
            self._draw("")
            self._write(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {text}")
            self._draw(bar)
        if self._terminal is None:
            return
        must_draw, bar = isinstance(event, Stage), ""
        if isinstance(event, Step):
            must_draw, share = event.step == event.steps, event.step / event.steps
            cells = ("#" * round(BAR_WIDTH * share)).ljust(BAR_WIDTH, "-")
            left = self._time_left(event.at)
            bar = f"{share:4.0%} [{cells}] step {event.step}/{event.steps}  loss {event.loss:.4f}  {left}"
        elif isinstance(event, (DownloadProgress, Stage)):
            bar = event_text(event)
        if bar and (must_draw or event.at - self._drawn_at >= BAR_SECONDS):
            if not isinstance(event, Stage):  # a stage must not hide the first step
                self._drawn_at = event.at
            self._draw(bar)

    def clear(self) -> None:
        """Remove the bar."""
        self._draw("")

    def _draw(self, bar: str) -> None:
        if self._terminal is not None and bar != self._drawn:
            shown = bar[: shutil.get_terminal_size().columns - 1]  # a longer one would fill two lines
            # The window may be closed while the run goes on.
            with suppress(OSError):
                self._terminal.write(f"\r{' ' * len(self._drawn)}\r{shown}")
                self._terminal.flush()
            self._drawn = shown


def print_events(job: Job, write: WriteLine, terminal: TextIO | None = None) -> None:
    """Write the lines of a job until it ends, and on a terminal its progress."""
    printer = EventPrinter(write, terminal)
    for event in job.log.follow():
        if isinstance(event, JobEnded):
            printer.clear()
        printer.print_event(event)
    printer.clear()


def console_observer(write: WriteLine) -> Callable[[Job], None]:
    """Observer for `Session.set_observer` that writes each job in a daemon thread."""

    def follow(job: Job) -> None:
        threading.Thread(target=print_events, args=(job, write), name="console", daemon=True).start()

    return follow
