"""The runs that wait for their turn, as training/queue.json holds them; every change makes a new queue.

Several programs may share the file: each change is made by one alone with it.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import asdict, dataclass, field, replace
from os.path import normcase
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import lock, patiently, why_not_written, write_json
from ...settings.definitions import SETTINGS

REMEMBERED = 20  # of those that had their turn
PATIENCE_SECONDS = 10.0  # a change by another program takes milliseconds


@dataclass(frozen=True)
class Waiting:
    """A run as it was put into the queue: `values` are its settings, `model` is the one that it was made for."""

    number: int
    name: str
    model: str
    values: Mapping[str, Any]
    steps: int = 0
    added: float = field(default_factory=time.time)
    skipped: str = ""
    """Why it had no turn, when it would have been its turn."""


@dataclass(frozen=True)
class Done:
    """A run that had its turn: how it ended, in words."""

    name: str
    outcome: str
    text: str
    values: Mapping[str, Any]
    at: float = field(default_factory=time.time)


@dataclass(frozen=True)
class Queue:
    """Those that wait, those whose turn it is, one for each program, and those that had theirs."""

    waiting: tuple[Waiting, ...] = ()
    begun: tuple[Waiting, ...] = ()
    done: tuple[Done, ...] = ()
    numbered: int = 0
    """The last number that was given; none is given twice, since a page may show an older list."""

    def with_one_more(self, name: str, model: str, values: Mapping[str, Any], steps: int) -> Queue:
        """At the end; a list that begins anew forgets what came of the one before."""
        known = [run.number for run in (*self.waiting, *self.begun)]
        run = Waiting(max(self.numbered, *known, 0) + 1, name, model, values, steps)
        done = self.done if known else ()
        return replace(self, waiting=(*self.waiting, run), done=done, numbered=run.number)

    def without(self, number: int) -> Queue:
        return replace(self, waiting=tuple(run for run in self.waiting if run.number != number))

    def moved(self, number: int, places: int) -> Queue:
        """So many places further down, or up where that is below 0; what is gone by now stays gone."""
        at = next((place for place, run in enumerate(self.waiting) if run.number == number), None)
        if at is None:
            return self
        rest = [run for run in self.waiting if run.number != number]
        rest.insert(max(0, at + places), self.waiting[at])
        return replace(self, waiting=tuple(rest))

    def after_skipping(self, reasons: Mapping[int, str]) -> Queue:
        """Each with why it has no turn now; empty where it could have one."""
        waiting = (replace(run, skipped=reasons.get(run.number, "")) for run in self.waiting)
        return replace(self, waiting=tuple(waiting))

    def beginning(self, run: Waiting) -> Queue:
        return replace(self.without(run.number), begun=(*self.begun, replace(run, skipped="")))

    def ended(self, number: int, outcome: str, text: str) -> Queue:
        """One that had begun is done."""
        done = (Done(run.name, outcome, text, run.values) for run in self.begun if run.number == number)
        return replace(self._not_begun(number), done=(*self.done, *done)[-REMEMBERED:])

    def put_back(self, number: int) -> Queue:
        """One that had begun waits again, as the first."""
        back = (run for run in self.begun if run.number == number)
        return replace(self._not_begun(number), waiting=(*back, *self.waiting))

    def _not_begun(self, number: int) -> Queue:
        return replace(self, begun=tuple(run for run in self.begun if run.number != number))


def name_problem(name: str, if_exists: str, earlier: Sequence[str]) -> str:
    """Why a name cannot be taken once these runs are there; empty where what to do then has been chosen.

    Windows has one folder for 'Story' and 'story'.
    """
    if if_exists != "ask" or normcase(name) not in map(normcase, earlier):
        return ""
    label = SETTINGS["if_exists"].label
    return f"Name: {name!r} is the name of a run before it. Choose another name, or what to do under {label}."


@contextmanager
def alone_with(path: Path) -> Iterator[None]:
    """Inside, no other program changes the queue; its lock is never removed, since another may wait for it."""
    with lock(path.with_name(f"{path.name}.lock"), patience=PATIENCE_SECONDS) as ours:
        if not ours:
            raise SavingError(
                f"The queue in {path} is held by another program, for {PATIENCE_SECONDS:g} seconds now. Look "
                "whether that still goes on; then try again."
            )
        yield


def load(path: Path) -> Queue:
    """An empty one where there is no file; SavingError where there is one that cannot be read."""
    try:
        return _queue(json.loads(patiently(lambda: path.read_text(encoding="utf-8-sig"))))
    except FileNotFoundError:
        return Queue()
    except (OSError, ValueError, TypeError, KeyError, AttributeError) as error:
        raise SavingError(f"The queue in {path} cannot be read: {error}. Mend the file, or delete it.") from error


def save(path: Path, queue: Queue) -> None:
    """Whole or not at all."""
    try:
        write_json(path, asdict(queue))
    except OSError as error:
        why = why_not_written(error, path.parent)
        raise SavingError(f"The queue cannot be kept in {path}: {why}. Mend that, then try again.") from error


def _queue(known: Mapping[str, Any]) -> Queue:
    begun = known.get("begun") or ()
    return Queue(
        tuple(Waiting(**run) for run in known.get("waiting", ())),
        tuple(Waiting(**run) for run in ([begun] if isinstance(begun, dict) else begun)),
        tuple(Done(**run) for run in known.get("done", ())),
        int(known.get("numbered", 0)),
    )
