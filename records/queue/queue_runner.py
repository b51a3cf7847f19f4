"""Runner of the queue: adds runs, starts the next one, and records how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.engine import Engine
from ...core.errors import BusyError, SavingError, TrainingProError, error_message
from ...core.files import is_locked, lock, remove_lock_file, safe_paths
from ...core.host import Folders, Host
from ...core.jobs import Job, JobEnded, Request, Session, StartedFromQueue
from ...settings.definitions import FULL_FINETUNE, TrainingSettings
from ...settings.parsing import training_settings
from ...train_utils import plural
from ..folder import is_in_progress, loras, recover_interrupted, with_final_name
from . import queue
from .queue import Queue, QueuedRun


class QueueRunner:
    """Adds runs to the queue on disk, and starts them when the session asks for the next one."""

    def __init__(self, host: Host, engine: Engine[TrainingSettings, Any], session: Session) -> None:
        self._host, self._engine, self._session = host, engine, session
        self._auto_start = session.auto_start
        self._auto_start.set_callbacks(self._start_next, self._record_end)

    @property
    def queue(self) -> Queue:
        """The queue on disk."""
        return queue.load(self._host.folders.queue)

    def read_with_damage(self) -> tuple[Queue, str]:
        """Return the queue on disk, and a sentence if runs in its file are damaged."""
        damage: list[str] = []
        path = self._host.folders.queue
        return queue.load(path, damage), queue.describe_damage(path, damage)

    def recover(self) -> None:
        """Recover runs of programs that ended in the middle of them."""
        if self.queue.begun:
            self._change(self._recover_runs)

    def _recover_runs(self, current: Queue) -> Queue:
        for run in current.begun:
            if run.number != self._auto_start.current_number and not is_locked(self._lock_path(run)):
                remove_lock_file(self._lock_path(run))
                recover_interrupted(self._run_folder(run), self._host.folders)
                current = _after_restart(current, run, self._run_folder(run))
        return current

    def add(self, values: Mapping[str, object]) -> QueuedRun:
        """Add a run at the end of the queue; raise SettingsError with all problems that would prevent it."""
        job = self._session.current
        settings = training_settings(values)
        model = self._host.card().name
        report = self._engine.check_start(settings, self._host)
        names = [job.result_name] if job is not None else []
        run = self._change(lambda current: current.with_checked_run(settings, model, report, names)).waiting[-1]
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

    def _run_folder(self, run: QueuedRun) -> Path:
        home = self._host.folders.output_folder(full_finetune=run.values.get("method") == FULL_FINETUNE)
        return safe_paths.child(home, run.name, "Name")

    def _lock_path(self, run: QueuedRun) -> Path:
        """Return the lock file of a run, held by the program that runs it. Locks of LoRAs have no such dot."""
        return self._host.folders.training / f"queue.{run.number}.lock"

    def _change(self, change: Callable[[Queue], Queue]) -> Queue:
        """Apply `change` to the queue under its locks, and return the new queue."""
        path = self._host.folders.queue
        with self._auto_start.lock, queue.lock_queue(path):
            damage: list[str] = []
            current = queue.load(path, damage)
            if (updated := change(current)) != current:
                queue.keep_damaged(path, damage)
                queue.save(path, updated)
        return updated

    def _start_next(self) -> bool:
        """Start the next run; return whether there was one that could start."""
        if (job := self._session.current) is not None:
            raise BusyError(job.title)
        try:
            if (run := self._take_next()) is not None:
                self._start(run)
                return True
            if self.queue.waiting:
                self._auto_start.disable(
                    "None of the waiting runs can start now. The queue shows the reason for each."
                )
        except BusyError:
            raise
        except (TrainingProError, OSError) as error:
            self._auto_start.disable(error_message(error))
        return False

    def _take_next(self) -> QueuedRun | None:
        """Take the first run that can start now. Those before it stay in the queue, each with the reason.

        The queue is saved before the run starts, since otherwise the run could start twice.
        """
        taken: list[QueuedRun] = []
        reasons = self._skip_reasons(self.queue.waiting)  # before the lock, since it may take a while
        with ExitStack() as run_lock:

            def take(current: Queue) -> Queue:
                added = [run for run in current.waiting if run.number not in reasons]
                current = current.with_skip_reasons({**reasons, **self._skip_reasons(added)})
                for run in [run for run in current.waiting if not run.skipped][:1]:
                    taken.append(_with_final_name(run, self._host.folders))
                    run_lock.enter_context(_hold_lock(self._lock_path(run)))
                    current = current.with_started(taken[0])
                return current

            self._change(take)
            if taken:
                self._auto_start.set_current(taken[0].number, run_lock.pop_all())
        return taken[0] if taken else None

    def _start(self, run: QueuedRun) -> None:
        """Start a run that was taken from the queue; it goes back there if another job was faster."""
        remaining = len(self.queue.waiting)
        more = (
            f"{remaining} more {plural(remaining, 'run is', 'runs are')} waiting"
            if remaining
            else "no more runs are waiting"
        )
        added_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.added))
        message = f"Started from the queue (added on {added_at}); {more}."

        def work(job: Job) -> JobEnded:
            job.log.append(StartedFromQueue(text=message))
            return self._engine.train(run.settings, self._host, job)

        try:
            self._session.train(run.name, self._host, work, queue_number=run.number)
        except BusyError:
            self._auto_start.release(run.number)
            self._change(lambda current: current.with_returned(run.number))
            raise

    def _skip_reasons(self, runs: Sequence[QueuedRun]) -> dict[int, str]:
        return {run.number: self._skip_reason(run) for run in runs}

    def _skip_reason(self, run: QueuedRun) -> str:
        """Return why a run cannot start now, or an empty string."""
        try:
            training_settings(run.values)
            model = self._host.card().name
        except TrainingProError as error:
            return str(error)
        if is_in_progress(run.name, self._host.folders):
            return f"{run.name!r} is already being trained. It was started on another page or by another command."
        return "" if model == run.model else f"This run was added for {run.model}, but {model} is loaded."

    def _record_end(self, job: Job) -> None:
        """Record how a run ended, if it was one of the queue.

        The next run may be in progress already: it can start as soon as the job has ended, which is before this.
        """
        end, number = job.end, job.queue_number
        if end is None or number is None:
            return
        try:
            self._change(lambda current: current.with_ended(number, end.outcome, end.text))
        except (TrainingProError, OSError) as error:
            self._auto_start.disable(error_message(error))
        finally:
            self._auto_start.release(number)


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a run, which shows other programs that it is in progress; they never take it themselves."""
    try:
        with lock(path):
            yield
    finally:
        remove_lock_file(path)


def _with_final_name(run: QueuedRun, folders: Folders) -> QueuedRun:
    """Give a run its final name, by which its folder is found after a restart."""
    settings = with_final_name(run.settings, folders)
    return replace(run, name=settings.what.name, values=settings.values())


def _after_restart(current: Queue, run: QueuedRun, folder: Path) -> Queue:
    """Put a run back that has not finished its first step; otherwise its folder says how it ended."""
    status = loras.run_status(folder) if folder.is_dir() else "nothing"
    if status == "nothing" or folder.stat().st_mtime < run.added:
        return current.with_returned(run.number)
    return current.with_ended(run.number, status, "The program ended during this run.")
