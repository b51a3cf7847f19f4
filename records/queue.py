"""The queue of runs, stored in training/queue.json, and its runner, which starts the next run when one has ended.

Several programs may share the file: each change is made under its lock. A run in progress has a lock of its own,
so that after a crash another program sees that nobody works on it any more.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import ExitStack
from dataclasses import asdict, dataclass, field, replace
from os.path import normcase
from pathlib import Path
from typing import Any

from ..core import files
from ..core.engine import Engine
from ..core.errors import BusyError, SavingError, SettingsError, TrainingProError, error_message
from ..core.files import Count, Timestamp, safe_paths
from ..core.host import Host, get_model_card
from ..core.jobs import Job, JobEnded, Request, Session, StartedFromQueue
from ..core.readable import readable
from ..settings.definitions import FULL_FINETUNE, SETTINGS, TrainingSettings
from ..settings.parsing import training_settings
from ..train_utils import date_and_time, plural
from .folder import is_in_progress, loras, recover_interrupted, with_final_name

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
    skipped: str = ""  # why it was skipped when it was its turn


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
    """The runs that wait, those in progress (one for each program), and those that have ended.

    It is immutable: every change returns a new queue.
    """

    waiting: tuple[QueuedRun, ...] = ()
    begun: tuple[QueuedRun, ...] = ()
    done: tuple[EndedRun, ...] = ()
    # The highest number given to a run. Numbers are never reused, since a page may show an older list.
    numbered: Count = 0

    def with_run(self, name: str, model: str, values: Mapping[str, Any], steps: int) -> Queue:
        """Add a run at the end. If no run waits or is in progress, the ended ones are forgotten."""
        numbers = [run.number for run in (*self.waiting, *self.begun)]
        run = QueuedRun(max(self.numbered, *numbers, 0) + 1, name, model, values, steps)
        done = self.done if numbers else ()
        return replace(self, waiting=(*self.waiting, run), done=done, numbered=run.number)

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
        return replace(self, waiting=tuple(replace(r, skipped=reasons.get(r.number, "")) for r in self.waiting))

    def with_started(self, run: QueuedRun) -> Queue:
        # Its folder tells how it ended only if it is younger than this.
        started = replace(run, skipped="", added=time.time())
        return replace(self.without_run(run.number), begun=(*self.begun, started))

    def with_ended(self, number: int, outcome: str, text: str) -> Queue:
        """Move a run in progress to those that have ended, with the first line of `text`."""
        line = text.strip().partition("\n")[0].rstrip()
        done = (EndedRun(run.name, outcome, line, run.values) for run in self.begun if run.number == number)
        begun = tuple(run for run in self.begun if run.number != number)
        return replace(self, begun=begun, done=(*self.done, *done))

    def with_returned(self, number: int) -> Queue:
        """Move a run in progress back to the front of those that wait."""
        returned = [run for run in self.begun if run.number == number]
        begun = tuple(run for run in self.begun if run.number != number)
        return replace(self, begun=begun, waiting=(*returned, *self.waiting))


def start_problems(settings: TrainingSettings, report: Any, earlier: Sequence[str]) -> list[str]:
    """Return what prevents a run after those with the names in `earlier`, by the engine's report and its name."""
    problems = list(report.problems)
    name = settings.what.name
    # The folder of an earlier run may not exist yet, so the check of this run alone does not find it. Windows has
    # one folder for 'Story' and 'story'.
    if settings.what.if_exists == "ask" and normcase(name) in map(normcase, earlier):
        label = SETTINGS["if_exists"].label
        problems.append(
            f"Name: an earlier run is also called {name!r}. Choose another name, or use '{label}' to choose what "
            "to do with that run."
        )
    return list(dict.fromkeys(problems))


def load(path: Path, damage: list[str] | None = None) -> Queue:
    """Read the queue; return an empty one if there is no file, and raise SavingError if it cannot be read.

    Damaged runs are left out, and `damage` gets a sentence about each.
    """
    try:
        queue: Queue = files.check_record(files.parse_json(path), Queue, "queue", [] if damage is None else damage)
    except FileNotFoundError:
        return Queue()
    except (OSError, ValueError) as error:
        raise SavingError(f"The queue in {path} can't be read: {error}. Fix the file, or delete it.") from error
    return queue


def save(path: Path, queue: Queue, damage: Sequence[str] = ()) -> None:
    """Write the queue, completely or not at all; a file with damaged runs is copied before they are left out."""
    try:
        if damage:
            shutil.copyfile(path, path.with_name(DAMAGED_COPY))
        files.write_json(path, asdict(replace(queue, done=queue.done[-MAX_ENDED_RUNS:])))
    except OSError as error:
        reason = files.write_error_reason(error, path.parent)
        raise SavingError(
            f"The queue can't be saved in {path}: {reason}. Fix the problem, then try again."
        ) from error


class QueueRunner:
    """Adds runs to the queue on disk, and starts them when the session asks for the next one."""

    def __init__(self, host: Host, engine: Engine[TrainingSettings, Any], session: Session) -> None:
        self._host, self._engine, self._session = host, engine, session
        self._path = host.folders.queue
        self._auto_start = session.auto_start
        self._auto_start.start_next, self._auto_start.record_end = self._start_next, self._record_end
        job = session.latest("training")  # one in a process of its own may have ended meanwhile
        if job is not None and not job.running:
            self._record_end(job)

    @property
    def queue(self) -> Queue:
        """The queue on disk."""
        return load(self._path)

    def read_with_damage(self) -> tuple[Queue, str]:
        """Return the queue on disk, and a sentence if runs in its file are damaged."""
        damage: list[str] = []
        queue, sentence = load(self._path, damage), ""
        if damage:
            sentence = (
                f"The queue in {self._path} is damaged. Training PRO ignored this entry: {damage[0]} Before the "
                f"next change to the file, Training PRO copies the file to {DAMAGED_COPY}."
            )
        return queue, readable(sentence)

    def _change(self, change: Callable[[Queue], Queue]) -> Queue:
        """Apply `change` to the queue under its locks, and return the new queue."""
        # The file of this lock is never removed, since another program may wait for it.
        lock_path = self._path.with_name(f"{self._path.name}.lock")
        with self._auto_start.lock, files.lock(lock_path, patience=PATIENCE_SECONDS) as acquired:
            if not acquired:
                raise SavingError(
                    f"The queue in {self._path} has been locked by another program for {PATIENCE_SECONDS:g} "
                    "seconds. Check whether that program is still running, then try again."
                )
            damage: list[str] = []
            current = load(self._path, damage)
            updated = change(current)
            if updated != current:
                save(self._path, updated, damage)
        return updated

    def recover(self) -> None:
        """Recover runs of programs that ended in the middle of them."""

        def recover_runs(current: Queue) -> Queue:
            for run in current.begun:
                path = self._lock_path(run)
                is_ours = run.number == self._auto_start.current_number
                # A run in a process of its own goes on without the program that has taken it from the queue.
                if is_ours or files.is_locked(path) or is_in_progress(run.name, self._host.folders):
                    continue
                files.remove_lock_file(path)
                whole_model = run.values.get("method") == FULL_FINETUNE
                home = self._host.folders.output_folder(full_finetune=whole_model)
                folder = safe_paths.child(home, run.name, "Name")
                recover_interrupted(folder, self._host.folders)
                # A run that has not finished its first step goes back; otherwise its folder says how it ended.
                # A folder that is older than the run in the queue is of another run with this name.
                status = loras.run_status(folder) if folder.is_dir() else "nothing"
                if status == "nothing" or folder.stat().st_mtime < run.added:
                    current = current.with_returned(run.number)
                else:
                    current = current.with_ended(run.number, status, "The program ended during this run.")
            return current

        if self.queue.begun:
            self._change(recover_runs)

    def add(self, values: Mapping[str, object]) -> QueuedRun:
        """Add a run at the end of the queue; raise SettingsError with all problems that would prevent it."""
        job = self._session.current
        settings = training_settings(values)
        model = self._host.card().name
        # Checked before the lock is taken: reading the data may take a while.
        report = self._engine.check_start(settings, self._host)

        def add_checked(current: Queue) -> Queue:
            names = [run.name for run in (*current.waiting, *current.begun)]
            names += [job.result_name] if job is not None else []
            if problems := start_problems(settings, report, names):
                raise SettingsError(problems)
            return current.with_run(settings.what.name, model, settings.values(), report.steps)

        run = self._change(add_checked).waiting[-1]
        self._auto_start.enable()
        if job is not None and job.kind == "training" and not job.running and not job.control.asked(Request.STOP):
            self._auto_start.start_now()  # that run has ended while the new one was checked
        return run

    def move(self, number: int, places: int) -> None:
        self._change(lambda current: current.with_moved(number, places))

    def remove(self, number: int) -> None:
        self._change(lambda current: current.without_run(number))

    def start(self) -> None:
        """Start the next run after the current one, or at once if none is in progress."""
        if not self.queue.waiting:
            raise SavingError("The queue is empty.")
        job = self._session.current
        if job is not None and job.kind == "training":
            self._auto_start.enable()
        else:
            self._auto_start.start_now()

    def _lock_path(self, run: QueuedRun) -> Path:
        """Return the lock file of a run, held by the program that runs it. Locks of LoRAs have no such dot."""
        return self._host.folders.training / f"queue.{run.number}.lock"

    def _start_next(self) -> bool:
        """Start the next run; return whether there was one that could start."""
        if (job := self._session.current) is not None:
            raise BusyError(job.title)
        try:
            run, waiting = self._take_next(), len(self.queue.waiting)
            if run is None:
                if waiting:
                    reason = "None of the waiting runs can start now. The queue shows the reason for each."
                    self._auto_start.disable(reason)
                return False
            more = f"{waiting} more {plural(waiting, 'run is', 'runs are')}" if waiting else "no more runs are"
            added_on = date_and_time(run.added)
            started = StartedFromQueue(text=f"Started from the queue (added on {added_on}); {more} waiting.")

            def work(job: Job) -> JobEnded:
                job.log.append(started)
                return self._engine.train(training_settings(run.values), self._host, job)

            try:
                # Its number lets the session's end hook find the run in the queue again.
                self._session.train(run.name, self._host, work, queue_number=run.number)
            except BusyError:  # another job was faster
                self._auto_start.release(run.number)
                self._change(lambda current: current.with_returned(run.number))
                raise
        except BusyError:
            raise
        except (TrainingProError, OSError) as error:
            self._auto_start.disable(error_message(error))
            return False
        return True

    def _take_next(self) -> QueuedRun | None:
        """Take the first run that can start now. Those before it stay in the queue, each with the reason."""
        # The queue is saved before the run starts, since otherwise the run could start twice.
        taken: list[QueuedRun] = []
        # Most reasons are found before the lock, since that may take a while.
        reasons = {run.number: self._skip_reason(run) for run in self.queue.waiting}
        with ExitStack() as run_lock:

            def take(current: Queue) -> Queue:
                found = {r.number: self._skip_reason(r) for r in current.waiting if r.number not in reasons}
                current = current.with_skip_reasons({**reasons, **found})
                for run in [run for run in current.waiting if not run.skipped][:1]:
                    # Its final name, by which its folder is found after a restart.
                    settings = with_final_name(training_settings(run.values), self._host.folders)
                    taken.append(replace(run, name=settings.what.name, values=settings.values()))
                    # Its lock shows other programs that the run is in progress; they never take it themselves.
                    run_lock.callback(files.remove_lock_file, self._lock_path(run))
                    run_lock.enter_context(files.lock(self._lock_path(run)))
                    current = current.with_started(taken[0])
                return current

            self._change(take)
            if taken:
                self._auto_start.current_number = taken[0].number
                self._auto_start.run_lock = run_lock.pop_all()
        return taken[0] if taken else None

    def _skip_reason(self, run: QueuedRun) -> str:
        """Return why a run cannot start now, or an empty string."""
        try:
            training_settings(run.values)
            model = get_model_card(self._host).name  # TextGen may have unloaded it since the last run
        except TrainingProError as error:
            return str(error)
        if is_in_progress(run.name, self._host.folders):
            return f"{run.name!r} is already being trained. It was started on another page or by another command."
        return "" if model == run.model else f"This run was added for {run.model}, but {model} is loaded."

    def _record_end(self, job: Job) -> None:
        """Record how a run ended, if it was one of the queue."""
        # The next run may be in progress already: it can start as soon as the job has ended, which is before this.
        end, number = job.end, job.queue_number
        if end is None or number is None:
            return
        try:
            self._change(lambda current: current.with_ended(number, end.outcome, end.text))
        except (TrainingProError, OSError) as error:
            self._auto_start.disable(error_message(error))
        finally:
            self._auto_start.release(number)
