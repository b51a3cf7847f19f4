"""The queue at work: what may be put into it, whose turn it is, and what came of those that had theirs."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core.engine import Engine
from ...core.errors import BusyError, SavingError, SettingsError, TrainingProError, first_line, in_words
from ...core.files import is_locked, lock, removed, safe_paths
from ...core.host import Host
from ...core.jobs import Ended, FromQueue, Job, Session
from ...settings.definitions import FULL, TrainingSettings
from ...settings.parsing import training_settings
from ...train_utils import plural
from ..folder import is_in_progress, loras, under_its_name
from . import queue
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
        """What programs that were ended in the middle of a run left in the list."""
        if self.queue.begun:
            self._change(self._set_right)

    def _set_right(self, known: Queue) -> Queue:
        for run in known.begun:
            if run.number != self._turns.number and not is_locked(self._lock(run)):
                removed(self._lock(run))
                known = _after_a_restart(known, run, self._folder(run))
        return known

    def add(self, values: Mapping[str, object]) -> Waiting:
        """Put a run at the end, to begin when the one that goes now has ended; or SettingsError with all that it
        would be refused with at its turn."""
        going = self._session.current
        settings = training_settings(values)
        model = self._host.card().name
        report = self._engine.foresee(settings, self._host)

        def put(known: Queue) -> Queue:
            if problems := [*report.problems, *_of_the_name(settings, known, going)]:
                raise SettingsError(list(dict.fromkeys(problems)))
            return known.with_one_more(settings.what.name, model, settings.values(), report.steps)

        added = self._change(put).waiting[-1]
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

    def _named(self, run: Waiting) -> Waiting:
        """Under the name that it will get: by it its folder is found again."""
        settings = under_its_name(training_settings(run.values), self._host.folders)
        return replace(run, name=settings.what.name, values=settings.values())

    def _folder(self, run: Waiting) -> Path:
        home = self._host.folders.kept(whole_model=run.values.get("method") == FULL)
        return safe_paths.child(home, run.name, "Name")

    def _lock(self, run: Waiting) -> Path:
        """Held by the program in which it is on its way; no LoRA's own has a dot in its name."""
        return self._host.folders.training / f"queue.{run.number}.lock"

    def _change(self, change: Callable[[Queue], Queue]) -> Queue:
        """What `change` makes of the queue, no other page and no other program changing it meanwhile."""
        path = self._host.folders.queue
        with self._turns.changing, queue.alone_with(path):
            known = self.queue
            if (changed := change(known)) != known:
                queue.save(path, changed)
        return changed

    def _begin_next(self) -> bool:
        """Whether there was one that could."""
        if (busy := self._session.current) is not None:
            raise BusyError(busy.title)
        try:
            return self._begun(self._taken())
        except BusyError:
            raise
        except (TrainingProError, OSError) as error:
            self._turns.hold(in_words(error))
            return False

    def _taken(self) -> Waiting | None:
        """The first that can begin now, for this program alone; those before it stay, each with the reason.

        It is noted before it begins: what cannot be noted would begin twice.
        """
        looked, found = self._reasons(self.queue.waiting), list[Waiting]()  # it may take a while: others wait
        with ExitStack() as held:

            def take(known: Queue) -> Queue:
                new = [run for run in known.waiting if run.number not in looked]
                known = known.after_skipping({**looked, **self._reasons(new)})
                found.extend(map(self._named, [run for run in known.waiting if not run.skipped][:1]))
                for run in found:
                    held.enter_context(_on_its_way(self._lock(run)))
                    known = known.beginning(run)
                return known

            self._change(take)
            for run in found:
                self._turns.taken(run.number, held.pop_all())
        return found[0] if found else None

    def _begun(self, run: Waiting | None) -> bool:
        if run is None:
            if self.queue.waiting:
                self._turns.hold("None of those that wait can begin now; each says why.")
            return False
        try:
            self._session.train(run.name, self._host, self._work(run))
        except BusyError:
            self._turns.let_go()
            self._change(lambda known: known.put_back(run.number))
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

    def _reasons(self, runs: Sequence[Waiting]) -> dict[int, str]:
        return {run.number: self._why_not(run) for run in runs}

    def _why_not(self, run: Waiting) -> str:
        """Why a run cannot have its turn now; empty where it can."""
        try:
            training_settings(run.values)
            loaded = self._host.card().name
        except TrainingProError as error:
            return str(error)
        if is_in_progress(run.name, self._host.folders):
            return f"{run.name!r} is being trained just now, by another page or command."
        return "" if loaded == run.model else f"It was made for {run.model}, and {loaded} is loaded."

    def _note(self, job: Job) -> None:
        """How a run ended, if it was one of ours."""
        end, number = job.end, self._turns.number
        if end is None or number is None:
            return
        try:
            text = first_line(TrainingProError(end.text))
            self._change(lambda known: known.ended(number, end.outcome, text))
        except (TrainingProError, OSError) as error:
            self._turns.hold(in_words(error))
        finally:
            self._turns.let_go()


@contextmanager
def _on_its_way(path: Path) -> Iterator[None]:
    """Inside, every program sees that somebody has this run; nobody else ever takes its lock."""
    try:
        with lock(path):
            yield
    finally:
        removed(path)


def _of_the_name(settings: TrainingSettings, known: Queue, going: Job | None) -> Iterator[str]:
    """Whether a run that comes before has it: one that waits, or one that goes, or went a moment ago."""
    earlier = [run.name for run in (*known.waiting, *known.begun)]
    if going is not None:
        earlier.append(going.makes)
    if problem := queue.name_problem(settings.what.name, settings.what.if_exists, earlier):
        yield problem


def _after_a_restart(known: Queue, begun: Waiting, folder: Path) -> Queue:
    """Before its first step a run leaves nothing: then it waits again. Else its folder says how far it came."""
    standing = loras.standing(folder) if folder.is_dir() else "nothing"
    if standing == "nothing" or folder.stat().st_mtime < begun.added:
        return known.put_back(begun.number)
    return known.ended(begun.number, standing, "The program was ended during this run.")
