"""The session: runs jobs, at most one on the model, each in a thread that outlives its page."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from functools import partial

from ..errors import BusyError, StoppedError, TrainingProError, first_line
from ..host import Host
from ..version import is_updated
from .auto_start import AutoStart
from .events import JobEnded
from .job import Job, JobFn, JobKind
from .log_capture import capture_library_logs


class Session:
    """Starts jobs: one at a time on the model, other jobs one of a kind; keeps the latest of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._latest: dict[JobKind, Job] = {}
        self._observer: Callable[[Job], None] | None = None
        self.auto_start = AutoStart()

    @property
    def current(self) -> Job | None:
        """The job that uses the model now, or None."""
        job = self._current
        return job if job is not None and job.running else None

    def latest(self, kind: JobKind) -> Job | None:
        return self._latest.get(kind)

    def set_observer(self, observer: Callable[[Job], None]) -> None:
        """Call `observer` with every job that starts; it must return at once. Replaces an earlier one."""
        self._observer = observer

    def train(self, name: str, host: Host, work: JobFn, *, queue_number: int | None = None) -> Job:
        """Start the job that trains a LoRA, or a whole model, of this name."""
        job = Job("training", f"Training '{name}'", result_name=name, queue_number=queue_number)
        return self._start_on_model(job, host, work)

    def start(self, kind: JobKind, title: str, host: Host, work: JobFn) -> Job:
        """Start a job with exclusive use of the model; raises BusyError if another job has it."""
        return self._start_on_model(Job(kind, title), host, work)

    def _start_on_model(self, job: Job, host: Host, work: JobFn) -> Job:
        with self._lock:
            if (busy := self.current) is not None:
                raise BusyError(f"The model is busy: {busy.title}. Wait until it is done, or stop it first.")
            self._current = self._latest[job.kind] = job
        return self._start_thread(job, partial(_run_on_model, host, work))

    def start_without_model(self, kind: JobKind, title: str, work: JobFn) -> Job:
        """Start a job that does not use the model; raises BusyError if one of its kind is running."""
        with self._lock:
            latest = self._latest.get(kind)
            if latest is not None and latest.running:
                raise BusyError(f"{latest.title} is running. Wait until it is done, or stop it first.")
            job = self._latest[kind] = Job(kind, title)
        return self._start_thread(job, work)

    def _start_thread(self, job: Job, work: JobFn) -> Job:
        # The work starts first: if the observer fails, the job still ends. The observer misses no event.
        threading.Thread(target=self._run_job, args=(job, work), name=job.title, daemon=True).start()
        if self._observer is not None:
            self._observer(job)
        return job

    def _run_job(self, job: Job, work: JobFn) -> None:
        job.log.append(_run_work(job, work))
        job.log.close()
        self.auto_start.on_job_end(job)


def _run_on_model(host: Host, work: JobFn, job: Job) -> JobEnded:
    with capture_library_logs(job.log), host.exclusive_use():
        return work(job)


def _run_work(job: Job, work: JobFn) -> JobEnded:
    try:
        return work(job)
    except StoppedError as error:
        return JobEnded(outcome="stopped", text=str(error))
    except TrainingProError as error:
        return JobEnded(outcome="failed", text=str(error), remedies=error.remedies)
    except BaseException as error:  # noqa: BLE001 - a job must never end without saying so, not even by sys.exit
        text = f"{job.title} ended with {type(error).__name__}: {first_line(error)}"
        if is_updated():
            advice = "Restart the webui or the page, then try again"
            text += f". Training PRO was updated while it was running. {advice}"
        return JobEnded(outcome="failed", text=text, details=traceback.format_exc())


SESSION = Session()
"""The only state at module level: an interface restart of the webui executes script.py again, but not this."""
