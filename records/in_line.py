"""The queue at work: what may be put into it, whose turn it is, and what came of those that had theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any

from ..core.engine import Engine
from ..core.errors import BusyError, SavingError, SettingsError, TrainingProError, first_line, in_words
from ..core.events import Ended, FromQueue
from ..core.host import Host
from ..core.session import Job, Session
from ..settings.declared import TrainingSettings
from ..settings.reading import training_settings
from ..train_utils import plural
from . import loras, queue
from .in_progress import is_in_progress
from .queue import Queue, Waiting


class InLine:
    """Puts runs into the queue, and begins them when the session's turns ask for the next one."""

    def __init__(self, host: Host, engine: Engine[TrainingSettings, Any], session: Session) -> None:
        self._host, self._engine, self._session = host, engine, session
        self._turns = session.turns
        self._turns.take_with(self._begin_next, self._note)

    @property
    def queue(self) -> Queue:
        """As it stands on disk."""
        return queue.load(self._host.folders.queue)

    def set_right(self) -> None:
        """What a program that was ended in the middle of a run left in the list."""
        with self._turns.changing:
            begun = self.queue.begun
            if begun is not None and not self._is_going(begun.name):
                self._change(lambda known: _after_a_restart(known, begun, self._folder(begun)))

    def add(self, values: Mapping[str, object]) -> Waiting:
        """Put a run at the end, to begin when the one that goes now has ended; or SettingsError with all that it
        would be refused with at its turn."""
        going = self._session.current
        settings = training_settings(values)
        model = self._host.card().name
        report = self._engine.foresee(settings, self._host)
        with self._turns.changing:
            if problems := [*report.problems, *self._of_the_name(settings, going)]:
                raise SettingsError(list(dict.fromkeys(problems)))
            self._change(
                lambda known: known.with_one_more(settings.what.name, model, settings.values(), report.steps)
            )
            added = self.queue.waiting[-1]
        self._follow(going)
        return added

    def move(self, number: int, places: int) -> None:
        self._change(lambda known: known.moved(number, places))

    def remove(self, number: int) -> None:
        self._change(lambda known: known.without(number))

    def go_on(self) -> None:
        """After the run that goes now, or at once."""
        if not self.queue.waiting:
            raise SavingError("Nothing waits in the queue.")
        job = self._session.current
        if job is not None and job.kind == "training":
            self._turns.follow()
        else:
            self._turns.now()

    def _follow(self, going: Job | None) -> None:
        """The run that went when the button was pressed may have ended while the new one was looked at."""
        self._turns.follow()
        if going is not None and going.kind == "training" and not going.running and not going.control.stopping:
            self._turns.now()

    def _of_the_name(self, settings: TrainingSettings, going: Job | None) -> Iterator[str]:
        """Whether a run that comes before has it: one that waits, or the one that goes, or went a moment ago."""
        name, known = settings.what.name, self.queue
        earlier = [run.name for run in (*known.waiting, *filter(None, [known.begun]))]
        if going is not None:
            earlier.append(going.makes)
        if problem := queue.name_problem(name, settings.what.if_exists, earlier):
            yield problem

    def _is_going(self, name: str) -> bool:
        """Here, or in another program on the same folders."""
        job = self._session.current
        return (job is not None and job.makes == name) or is_in_progress(name, self._host.folders)

    def _folder(self, run: Waiting) -> Path:
        """Where a run is kept: a LoRA among the LoRAs, a whole model among the models."""
        folders = self._host.folders
        return (folders.models if run.values.get("method") == "full" else folders.loras) / run.name

    def _change(self, change: Callable[[Queue], Queue]) -> None:
        with self._turns.changing:
            known = self.queue
            if (changed := change(known)) != known:
                queue.save(self._host.folders.queue, changed)

    def _begin_next(self) -> bool:
        """The first that can begin now; those before it stay in the list, each with the reason."""
        if (busy := self._session.current) is not None:
            raise BusyError(busy.title)
        try:
            reasons = {run.number: why for run in self.queue.waiting if (why := self._why_not(run))}
            self._change(lambda known: known.after_skipping(reasons))
            return self._begun(next((run for run in self.queue.waiting if not run.skipped), None))
        except BusyError:
            raise
        except (TrainingProError, OSError) as error:
            self._turns.hold(in_words(error))
            return False

    def _begun(self, run: Waiting | None) -> bool:
        if run is None:
            if self.queue.waiting:
                self._turns.hold("None of those that wait can begin now; each says why.")
            return False
        self._change(lambda known: known.beginning(run))  # first: what cannot be noted would begin twice
        try:
            self._session.train(run.name, self._host, self._work(run))
        except BusyError:
            self._change(Queue.put_back)
            raise
        return True

    def _work(self, run: Waiting) -> Callable[[Job], Ended]:
        left = len(self.queue.waiting)
        more = f"{left} more {plural(left, 'waits', 'wait')} there" if left else "it was the last one"
        put = time.strftime("%Y-%m-%d %H:%M", time.localtime(run.added))

        def work(job: Job) -> Ended:
            job.log.append(FromQueue(text=f"Started from the queue, where it was put at {put}; {more}."))
            return self._engine.train(training_settings(run.values), self._host, job)

        return work

    def _why_not(self, run: Waiting) -> str:
        """Why a run cannot have its turn now; empty where it can."""
        try:
            training_settings(run.values)
            loaded = self._host.card().name
        except TrainingProError as error:
            return str(error)
        return "" if loaded == run.model else f"It was made for {run.model}, and {loaded} is loaded."

    def _note(self, job: Job) -> None:
        """How a run ended, if it was one of ours."""
        end = job.end
        try:
            begun = self.queue.begun
            if begun is not None and end is not None and job.makes == begun.name:
                text = first_line(TrainingProError(end.text))
                self._change(lambda known: known.ended(end.outcome, text))
        except (TrainingProError, OSError) as error:
            self._turns.hold(in_words(error))


def _after_a_restart(known: Queue, begun: Waiting, folder: Path) -> Queue:
    """Before its first step a run leaves nothing: then it waits again. Else its folder says how far it came."""
    standing = loras.standing(folder) if folder.is_dir() else "nothing"
    if standing == "nothing" or folder.stat().st_mtime < begun.added:
        return known.put_back()
    return known.ended(standing, "The program was ended during this run.")
