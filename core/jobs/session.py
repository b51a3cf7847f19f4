"""The session: runs jobs, at most one on the model, each in a thread that outlives its page."""

from __future__ import annotations

import logging
import threading
import traceback
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from ..errors import BusyError, StoppedError, TrainingProError, first_line
from ..host import Host
from ..version import LOADED_MTIME, newest_mtime
from .events import JobEnded, LibraryMessage
from .job import EventLog, Job, JobFn, JobKind, Request

LIBRARIES = ("transformers", "peft", "accelerate", "bitsandbytes", "torch", "huggingface_hub", "py.warnings")


class AutoStart:
    """Starts queued runs: the end of a run makes the next one pending, the end of any job may free the model."""

    def __init__(self) -> None:
        self.lock = threading.RLock()  # held while the queue is read and changed
        self.enabled = False  # whether the next run starts automatically
        self.pending = False  # whether the next run only waits for the model
        self.off_reason = ""  # why the next run does not start automatically
        self.current_number: int | None = None  # of the queued run that is in progress in this process
        self.run_lock = ExitStack()  # shows other processes that this run is in progress
        # Set by the queue. `start_next` returns whether a run was started, and raises BusyError while another job
        # uses the model.
        self.start_next: Callable[[], bool] | None = None
        self.record_end: Callable[[Job], None] | None = None

    def release(self, number: int) -> None:
        """Note that this run is no longer in progress, and release its lock."""
        if number == self.current_number:
            self.current_number = None
            self.run_lock.close()

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
        with self.lock:
            if job.kind == "training":
                if self.record_end is not None:
                    self.record_end(job)
                if job.control.asked(Request.STOP) and self.enabled:
                    self.disable(f"{job.title} was stopped.")
                self.pending = self.enabled
            self._start_pending()

    def _start_pending(self) -> None:
        if not self.pending or self.start_next is None:
            return
        try:
            started = self.start_next()
        except BusyError:
            # Another job was faster. `pending` stays, so the end of that job tries again.
            return
        self.pending = False
        self.enabled = self.enabled and started


class Session:
    """Starts jobs: one at a time on the model, other jobs one of a kind; keeps the latest of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._is_elsewhere = False  # whether it is done in a process of its own
        self._latest: dict[JobKind, Job] = {}
        self._observer: Callable[[Job], None] | None = None
        self.auto_start = AutoStart()

    @property
    def current(self) -> Job | None:
        """The job that uses the model now, or None."""
        job = self._current
        return job if job is not None and job.running else None

    @property
    def uses_host_model(self) -> Job | None:
        """The job that uses the model of the host, with which nobody can chat meanwhile; or None."""
        return None if self._is_elsewhere else self.current

    def latest(self, kind: JobKind) -> Job | None:
        return self._latest.get(kind)

    def set_observer(self, observer: Callable[[Job], None]) -> None:
        """Call `observer` with every job that starts; it must return at once. Replaces an earlier one."""
        self._observer = observer

    def train(
        self, name: str, host: Host, work: JobFn, *, queue_number: int | None = None, is_elsewhere: bool = False
    ) -> Job:
        """Start the job that trains under this name; `is_elsewhere`: it follows a run that goes on already."""
        job = Job("training", f"Training '{name}'", result_name=name, queue_number=queue_number)
        return self._start(job, host, work, is_elsewhere=is_elsewhere)

    def start(self, kind: JobKind, title: str, host: Host, work: JobFn) -> Job:
        """Start a job with exclusive use of the model; raises BusyError if another job has it."""
        return self._start(Job(kind, title), host, work)

    def start_without_model(self, kind: JobKind, title: str, work: JobFn) -> Job:
        """Start a job that does not use the model; raises BusyError if one of its kind is running."""
        return self._start(Job(kind, title), None, work)

    def _start(self, job: Job, host: Host | None, work: JobFn, *, is_elsewhere: bool = False) -> Job:
        is_elsewhere = is_elsewhere or (host is not None and host.own_process is not None)
        with self._lock:
            other = self.current if host is not None else self.latest(job.kind)
            if other is not None and other.running:
                busy = f"The model is busy: {other.title}" if host is not None else f"{other.title} is running"
                raise BusyError(f"{busy}. Wait until it is done, or stop it first.")
            self._latest[job.kind] = job
            if host is not None:
                self._current, self._is_elsewhere = job, is_elsewhere
        # The work starts first: if the observer fails, the job still ends. The observer misses no event.
        # As a daemon, a thread that hangs in a library does not keep the program from ending.
        threading.Thread(
            target=self._run_job, args=(job, host, work, is_elsewhere), name=job.title, daemon=True
        ).start()
        if self._observer is not None:
            self._observer(job)
        return job

    def _run_job(self, job: Job, host: Host | None, work: JobFn, is_elsewhere: bool) -> None:
        try:
            with ExitStack() as while_working:
                if host is not None:
                    while_working.enter_context(capture_library_logs(job.log))
                    if not is_elsewhere:
                        while_working.enter_context(host.exclusive_use())
                end = work(job)
        except StoppedError as error:
            end = JobEnded(outcome="stopped", text=str(error))
        except TrainingProError as error:
            end = JobEnded(outcome="failed", text=str(error), remedies=error.remedies)
        except BaseException as error:  # noqa: BLE001 - a job must never end without saying so, not even by sys.exit
            text = f"{job.title} ended with {type(error).__name__}: {first_line(error)}"
            if newest_mtime() > LOADED_MTIME:
                advice = "Restart the webui or the page, then try again"
                text += f". Training PRO was updated while it was running. {advice}"
            end = JobEnded(outcome="failed", text=text, details=traceback.format_exc())
        # The log is closed before the next run starts: until then, the job counts as running.
        job.log.append(end)
        job.log.close()
        self.auto_start.on_job_end(job)


class _EventLogHandler(logging.Handler):
    def __init__(self, log: EventLog) -> None:
        super().__init__()
        self._log = log

    def emit(self, record: logging.LogRecord) -> None:
        self._log.append(LibraryMessage(source=record.name, text=record.getMessage().strip()))


class _CapturedHandlers(list[logging.Handler]):
    """Handlers of a logger during a job; a handler that a library adds meanwhile is kept for afterwards."""

    def __init__(self, log: EventLog) -> None:
        super().__init__([_EventLogHandler(log)])
        self.waiting: list[logging.Handler] = []

    def append(self, handler: logging.Handler) -> None:
        self.waiting.append(handler)


@contextmanager
def capture_library_logs(log: EventLog) -> Iterator[None]:
    """Send log records and warnings of libraries to `log`; restores the loggers afterwards."""
    # The thread of a job must never write to a console: on Windows, a click into it blocks every writer.
    loggers = [logging.getLogger(name) for name in LIBRARIES]
    previous = [(logger, logger.handlers, logger.propagate, _CapturedHandlers(log)) for logger in loggers]
    showwarning = warnings.showwarning
    logging.captureWarnings(True)
    for logger, _, _, captured in previous:
        logger.handlers, logger.propagate = captured, False
    try:
        yield
    finally:
        if warnings.showwarning is not showwarning:  # otherwise the host captures them too and keeps doing so
            logging.captureWarnings(False)
        for logger, handlers, propagate, captured in previous:
            logger.handlers, logger.propagate = [*handlers, *captured.waiting], propagate


# State at module level, as the engine of the tab: an interface restart of the webui executes script.py again, but
# not this.
SESSION = Session()
