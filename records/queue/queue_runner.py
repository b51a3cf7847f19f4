"""Runner of the queue: adds runs, starts the next one, and records how they ended."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.engine import Engine
from ...core.errors import BusyError, SavingError, SettingsError, TrainingProError, error_message, first_line
from ...core.files import is_locked, lock, remove_lock_file, safe_paths
from ...core.host import Host
from ...core.jobs import Job, JobEnded, Request, Session, StartedFromQueue
from ...settings.definitions import FULL_FINETUNE, TrainingSettings
from ...settings.parsing import training_settings
from ...train_utils import plural
from ..folder import is_in_progress, loras, with_final_name
from . import queue
from .queue import Queue, QueuedRun


class QueueRunner:
    """Adds runs to the queue, and starts them when the session asks for the next one."""

    def __init__(self, host: Host, engine: Engine[TrainingSettings, Any], session: Session) -> None:
        self._host, self._engine, self._session = host, engine, session
        self._turns = session.turns
        self._turns.take_with(self._begin_next, self._record_end)

    @property
    def queue(self) -> Queue:
        """The queue on disk."""
        return queue.load(self._host.folders.queue)

    def recover(self) -> None:
        """Recover runs of programs that ended in the middle of them."""
        if self.queue.begun:
            self._change(self._recover_runs)

    def _recover_runs(self, current: Queue) -> Queue:
        for run in current.begun:
            if run.number != self._turns.number and not is_locked(self._lock_path(run)):
                remove_lock_file(self._lock_path(run))
                current = _after_restart(current, run, self._run_folder(run))
        return current

    def add(self, values: Mapping[str, object]) -> QueuedRun:
        """Add a run at the end of the queue; raise SettingsError with all problems that would prevent it."""
        job = self._session.current
        settings = training_settings(values)
        model = self._host.card().name
        report = self._engine.check_start(settings, self._host)

        def append(current: Queue) -> Queue:
            if problems := [*report.problems, *_name_conflicts(settings, current, job)]:
                raise SettingsError(list(dict.fromkeys(problems)))
            return current.with_run(settings.what.name, model, settings.values(), report.steps)

        run = self._change(append).waiting[-1]
        self._schedule(job)
        return run

    def move(self, number: int, places: int) -> None:
        self._change(lambda current: current.moved(number, places))

    def remove(self, number: int) -> None:
        self._change(lambda current: current.without(number))

    def go_on(self) -> None:
        """Start the next run after the current one, or at once if none is in progress."""
        if not self.queue.waiting:
            raise SavingError("Nothing waits in the queue.")
        job = self._session.current
        if job is not None and job.kind == "training":
            self._turns.follow()
        else:
            self._turns.now()

    def _schedule(self, job: Job | None) -> None:
        """Start the queue at once if the run that was in progress has ended while the new one was checked."""
        self._turns.follow()
        if job is not None and job.kind == "training" and not job.running and not job.control.asked(Request.STOP):
            self._turns.now()

    def _with_final_name(self, run: QueuedRun) -> QueuedRun:
        """Give a run its final name, by which its folder is found after a restart."""
        settings = with_final_name(training_settings(run.values), self._host.folders)
        return replace(run, name=settings.what.name, values=settings.values())

    def _run_folder(self, run: QueuedRun) -> Path:
        home = self._host.folders.kept(whole_model=run.values.get("method") == FULL_FINETUNE)
        return safe_paths.child(home, run.name, "Name")

    def _lock_path(self, run: QueuedRun) -> Path:
        """Return the lock file of a run, held by the program that runs it. Locks of LoRAs have no such dot."""
        return self._host.folders.training / f"queue.{run.number}.lock"

    def _change(self, change: Callable[[Queue], Queue]) -> Queue:
        """Apply `change` to the queue under its locks, and return the new queue."""
        path = self._host.folders.queue
        with self._turns.changing, queue.lock_queue(path):
            current = self.queue
            if (updated := change(current)) != current:
                queue.save(path, updated)
        return updated

    def _begin_next(self) -> bool:
        """Start the next run; return whether there was one that could start."""
        if (job := self._session.current) is not None:
            raise BusyError(job.title)
        try:
            return self._start(self._take_next())
        except BusyError:
            raise
        except (TrainingProError, OSError) as error:
            self._turns.hold(error_message(error))
            return False

    def _take_next(self) -> QueuedRun | None:
        """Take the first run that can start now. Those before it stay in the queue, each with the reason.

        The queue is saved before the run starts, since otherwise the run could start twice.
        """
        taken: list[QueuedRun] = []
        reasons = self._skip_reasons(self.queue.waiting)  # before the lock, since it may take a while
        with ExitStack() as stack:

            def take(current: Queue) -> Queue:
                added = [run for run in current.waiting if run.number not in reasons]
                current = current.with_skip_reasons({**reasons, **self._skip_reasons(added)})
                taken.extend(map(self._with_final_name, [run for run in current.waiting if not run.skipped][:1]))
                for run in taken:
                    stack.enter_context(_hold_lock(self._lock_path(run)))
                    current = current.with_started(run)
                return current

            self._change(take)
            for run in taken:
                self._turns.taken(run.number, stack.pop_all())
        return taken[0] if taken else None

    def _start(self, run: QueuedRun | None) -> bool:
        if run is None:
            if self.queue.waiting:
                self._turns.hold("None of those that wait can begin now; each says why.")
            return False
        try:
            self._session.train(run.name, self._host, self._work(run))
        except BusyError:
            self._turns.let_go()
            self._change(lambda current: current.put_back(run.number))
            raise
        return True

    def _work(self, run: QueuedRun) -> Callable[[Job], JobEnded]:
        remaining = len(self.queue.waiting)
        rest = (
            f"{remaining} more {plural(remaining, 'waits', 'wait')} there" if remaining else "it was the last one"
        )
        added_at = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.added))

        def work(job: Job) -> JobEnded:
            job.log.append(
                StartedFromQueue(text=f"Started from the queue, where it was put at {added_at}; {rest}.")
            )
            return self._engine.train(training_settings(run.values), self._host, job)

        return work

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
            return f"{run.name!r} is being trained just now, by another page or command."
        return "" if model == run.model else f"It was made for {run.model}, and {model} is loaded."

    def _record_end(self, job: Job) -> None:
        """Record how a run ended, if it was one of the queue."""
        ended, number = job.end, self._turns.number
        if ended is None or number is None:
            return
        try:
            text = first_line(TrainingProError(ended.text))
            self._change(lambda current: current.ended(number, ended.outcome, text))
        except (TrainingProError, OSError) as error:
            self._turns.hold(error_message(error))
        finally:
            self._turns.let_go()


@contextmanager
def _hold_lock(path: Path) -> Iterator[None]:
    """Hold the lock of a run, which shows other programs that it is in progress; they never take it themselves."""
    try:
        with lock(path):
            yield
    finally:
        remove_lock_file(path)


def _name_conflicts(settings: TrainingSettings, current: Queue, job: Job | None) -> Iterator[str]:
    """Yield a problem if an earlier run has the same name: one that waits, is in progress or has just ended."""
    earlier = [run.name for run in (*current.waiting, *current.begun)]
    if job is not None:
        earlier.append(job.result_name)
    if problem := queue.name_conflict(settings.what.name, settings.what.if_exists, earlier):
        yield problem


def _after_restart(current: Queue, run: QueuedRun, folder: Path) -> Queue:
    """Put a run back that has not finished its first step; otherwise its folder says how it ended."""
    status = loras.run_status(folder) if folder.is_dir() else "nothing"
    if status == "nothing" or folder.stat().st_mtime < run.added:
        return current.put_back(run.number)
    return current.ended(run.number, status, "The program was ended during this run.")
