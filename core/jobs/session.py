"""Jobs, at most one on the model, each on a thread of its own that outlives the page which started it."""

from __future__ import annotations

import threading
import traceback
from collections.abc import Callable
from functools import partial

from ..errors import BusyError, TrainingProError
from ..host import Host
from ..version import is_updated
from .auto_start import Turns
from .events import Ended
from .job import Job, Kind, Work
from .log_capture import spoken_into


class Session:
    """Starts jobs, one at a time on the model and one of a kind beside it, and remembers the last of each kind."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._current: Job | None = None
        self._latest: dict[Kind, Job] = {}
        self._teller: Callable[[Job], None] | None = None
        self.turns = Turns()

    @property
    def current(self) -> Job | None:
        """The job that is running now."""
        job = self._current
        return job if job is not None and job.running else None

    def latest(self, kind: Kind) -> Job | None:
        return self._latest.get(kind)

    def tell_with(self, teller: Callable[[Job], None]) -> None:
        """Call `teller` with every job that starts; it must return at once. An earlier teller falls silent."""
        self._teller = teller

    def train(self, name: str, host: Host, work: Work) -> Job:
        """Start the job that makes a LoRA, or a model, of this name."""
        return self.start("training", f"Training '{name}'", host, work, makes=name)

    def start(self, kind: Kind, title: str, host: Host, work: Work, *, makes: str = "") -> Job:
        """Begin `work` under the host's exclusive use, or say what has the model now."""
        with self._lock:
            if (busy := self.current) is not None:
                raise BusyError(f"The model is busy: {busy.title}. Wait until it is done, or stop it first.")
            job = Job(kind, title, makes=makes)
            self._current = self._latest[kind] = job
        return self._begun(job, partial(_on_the_model, host, work))

    def start_beside(self, kind: Kind, title: str, work: Work) -> Job:
        """Begin `work` that needs no model, whatever has that; or say that one of its kind goes on."""
        with self._lock:
            latest = self._latest.get(kind)
            if latest is not None and latest.running:
                raise BusyError(f"{latest.title} goes on. Wait until it is done, or stop it first.")
            job = self._latest[kind] = Job(kind, title)
        return self._begun(job, work)

    def _begun(self, job: Job, work: Work) -> Job:
        # First the work: a teller that fails must not leave a job that never ends, and it misses nothing.
        threading.Thread(target=self._carried_out, args=(job, work), name=job.title, daemon=True).start()
        if self._teller is not None:
            self._teller(job)
        return job

    def _carried_out(self, job: Job, work: Work) -> None:
        _carry_out(job, work)
        self.turns.ended(job)


def _on_the_model(host: Host, work: Work, job: Job) -> Ended:
    with spoken_into(job.log), host.exclusive_use():
        return work(job)


def _carry_out(job: Job, work: Work) -> None:
    try:
        end = work(job)
    except TrainingProError as error:
        end = Ended(outcome="failed", text=str(error), remedies=error.remedies)
    except BaseException as error:  # noqa: BLE001 - a job must never end without saying so, not even by sys.exit
        text = f"{job.title} ended with an error of the kind {type(error).__name__}: {error}"
        if is_updated():
            text += (
                ". Training PRO was updated since it was started: restart the webui or the page, then try again"
            )
        end = Ended(outcome="failed", text=text, details=traceback.format_exc())
    job.log.append(end)
    job.log.close()


SESSION = Session()
"""The one state at module level: the webui executes script.py anew on an interface restart, this not."""
