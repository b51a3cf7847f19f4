"""The queue of runs, stored in training/queue.json; it is immutable, so that every change returns a new queue.

Several programs may share the file: each change is made under its lock.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from os.path import normcase
from pathlib import Path
from typing import Any

from ...core.errors import SavingError, SettingsError
from ...core.files import Count, Timestamp, check_record, lock, parse_json, write_error_reason, write_json
from ...core.readable import readable
from ...settings.definitions import SETTINGS, TrainingSettings
from ...settings.parsing import training_settings

MAX_ENDED_RUNS = 20  # in the file
DAMAGED_COPY = "queue.damaged.json"
PATIENCE_SECONDS = 10.0  # a change by another program takes milliseconds


@dataclass(frozen=True)
class QueuedRun:
    """A run in the queue: `values` are its settings, `model` is the name of the model it was added for."""

    number: Count
    name: str
    model: str
    values: Mapping[str, Any]
    steps: Count = 0
    added: Timestamp = field(default_factory=time.time)
    skipped: str = ""
    """Why it was skipped when it was its turn."""

    @property
    def settings(self) -> TrainingSettings:
        return training_settings(self.values)


@dataclass(frozen=True)
class EndedRun:
    """A run of the queue that has ended; `text` says how, in one line."""

    name: str
    outcome: str
    text: str
    values: Mapping[str, Any]
    at: Timestamp = field(default_factory=time.time)


@dataclass(frozen=True)
class Queue:
    """The runs that wait, those in progress (one for each program), and those that have ended."""

    waiting: tuple[QueuedRun, ...] = ()
    begun: tuple[QueuedRun, ...] = ()
    done: tuple[EndedRun, ...] = ()
    numbered: Count = 0
    """The highest number given to a run. Numbers are never reused, since a page may show an older list."""

    def with_run(self, name: str, model: str, values: Mapping[str, Any], steps: int) -> Queue:
        """Add a run at the end. If no run waits or is in progress, the ended ones are forgotten."""
        numbers = [run.number for run in (*self.waiting, *self.begun)]
        run = QueuedRun(max(self.numbered, *numbers, 0) + 1, name, model, values, steps)
        done = self.done if numbers else ()
        return replace(self, waiting=(*self.waiting, run), done=done, numbered=run.number)

    def with_checked_run(
        self, settings: TrainingSettings, model: str, report: Any, other_names: Sequence[str] = ()
    ) -> Queue:
        """Add a run at the end; raise SettingsError with all problems, those in the engine's report among them.

        Its name must not be that of an earlier run: one that waits or is in progress, or one of `other_names`.
        """
        earlier = [*(run.name for run in (*self.waiting, *self.begun)), *other_names]
        conflict = name_conflict(settings.what.name, settings.what.if_exists, earlier)
        if problems := [*report.problems, *filter(None, [conflict])]:
            raise SettingsError(list(dict.fromkeys(problems)))
        return self.with_run(settings.what.name, model, settings.values(), report.steps)

    def without_run(self, number: int) -> Queue:
        return replace(self, waiting=tuple(run for run in self.waiting if run.number != number))

    def with_moved(self, number: int, places: int) -> Queue:
        """Move a run down by `places`, or up if negative; a run that is not there any more is ignored."""
        position = next((i for i, run in enumerate(self.waiting) if run.number == number), None)
        if position is None:
            return self
        waiting = [run for run in self.waiting if run.number != number]
        waiting.insert(max(0, position + places), self.waiting[position])
        return replace(self, waiting=tuple(waiting))

    def with_skip_reasons(self, reasons: Mapping[int, str]) -> Queue:
        """Set for each run why it is skipped now; empty if it is not."""
        waiting = (replace(run, skipped=reasons.get(run.number, "")) for run in self.waiting)
        return replace(self, waiting=tuple(waiting))

    def with_started(self, run: QueuedRun) -> Queue:
        return replace(self.without_run(run.number), begun=(*self.begun, replace(run, skipped="")))

    def with_ended(self, number: int, outcome: str, text: str) -> Queue:
        """Move a run in progress to those that have ended, with the first line of `text`."""
        line = text.strip().partition("\n")[0].rstrip()
        done = (EndedRun(run.name, outcome, line, run.values) for run in self.begun if run.number == number)
        return replace(self._without_begun(number), done=(*self.done, *done))

    def with_returned(self, number: int) -> Queue:
        """Move a run in progress back to the front of those that wait."""
        returned = (run for run in self.begun if run.number == number)
        return replace(self._without_begun(number), waiting=(*returned, *self.waiting))

    def _without_begun(self, number: int) -> Queue:
        return replace(self, begun=tuple(run for run in self.begun if run.number != number))


def name_conflict(name: str, if_exists: str, earlier: Sequence[str]) -> str:
    """Return why a name conflicts with these earlier runs, unless the user has chosen what to do then.

    Windows has one folder for 'Story' and 'story'.
    """
    if if_exists != "ask" or normcase(name) not in map(normcase, earlier):
        return ""
    label = SETTINGS["if_exists"].label
    return (
        f"Name: an earlier run is also called {name!r}. Choose another name, or use '{label}' to choose what to "
        "do with that run."
    )


@contextmanager
def lock_queue(path: Path) -> Iterator[None]:
    """Hold the lock of the queue. The lock file is never removed, since another program may wait for it."""
    with lock(path.with_name(f"{path.name}.lock"), patience=PATIENCE_SECONDS) as acquired:
        if not acquired:
            raise SavingError(
                f"The queue in {path} has been locked by another program for {PATIENCE_SECONDS:g} "
                "seconds. Check whether that program is still running, then try again."
            )
        yield


def load(path: Path, damage: list[str] | None = None) -> Queue:
    """Read the queue; return an empty one if there is no file, and raise SavingError if it cannot be read.

    Damaged runs are left out, and `damage` gets a sentence about each.
    """
    try:
        return _from_json(parse_json(path), [] if damage is None else damage)
    except FileNotFoundError:
        return Queue()
    except (OSError, ValueError) as error:
        raise SavingError(f"The queue in {path} can't be read: {error}. Fix the file, or delete it.") from error


def keep_damaged(path: Path, damage: Sequence[str]) -> None:
    """Copy a file with damaged runs before it is written without them, so that nothing is lost."""
    if damage:
        shutil.copyfile(path, path.with_name(DAMAGED_COPY))


def describe_damage(path: Path, damage: Sequence[str]) -> str:
    """Say in one sentence which runs of the queue are damaged; empty if none is."""
    if not damage:
        return ""
    return readable(
        f"The queue in {path} is damaged. Training PRO ignored this entry: {damage[0]} Before the next "
        f"change to the file, Training PRO copies the file to {DAMAGED_COPY}."
    )


def save(path: Path, queue: Queue) -> None:
    """Write the queue, completely or not at all."""
    try:
        write_json(path, asdict(replace(queue, done=queue.done[-MAX_ENDED_RUNS:])))
    except OSError as error:
        reason = write_error_reason(error, path.parent)
        raise SavingError(
            f"The queue can't be saved in {path}: {reason}. Fix the problem, then try again."
        ) from error


def _from_json(values: Any, damage: list[str]) -> Queue:
    if isinstance(values, dict) and not isinstance(values.get("begun", []), list):
        begun = values["begun"]  # older versions had one run or none
        values = {**values, "begun": [begun] if begun else []}
    queue: Queue = check_record(values, Queue, "queue", damage)
    return queue
