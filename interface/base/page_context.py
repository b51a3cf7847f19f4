"""What the tab is joined from: whoever lends the model, whoever works on it, and the one session."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ...core.engine import Engine
from ...core.errors import BusyError, SettingsError, TrainingProError, in_words
from ...core.host import Folders, Host
from ...core.jobs import Ended, Event, Job, Session, Stage
from ...data.report import DatasetReport
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from . import markup
from .outdated import MadeFrom

PAUSE_SECONDS = 0.2


@dataclass(frozen=True)
class Joined:
    """Host, engine and session, handed to every part of the page; `models` is the menu of a page of our own."""

    host: Host
    engine: Engine[TrainingSettings, DatasetReport]
    session: Session
    models: Any = None

    def host_says_read_only(self) -> str:
        """Why this page may only look; a host that cannot be asked is said elsewhere on the page."""
        try:
            return self.host.read_only
        except TrainingProError:
            return ""

    def trains(self, name: str) -> bool:
        """Whether this LoRA is being made just now."""
        job = self.session.current
        return job is not None and bool(name) and job.makes == name

    def asked(self, values: Mapping[str, object]) -> TrainingSettings:
        """What a form asks for; a SettingsError has everything that is wrong, a model that is missing among it."""
        try:
            return training_settings(values)
        except SettingsError as error:
            missing = self.host.standing().problem
            raise SettingsError([*error.problems, *([missing] if missing else [])]) from None

    def made_from(self, values: Mapping[str, Any]) -> MadeFrom:
        """What a result of this form is made from at this moment."""
        return MadeFrom(values, self.host.standing().model)

    def refuse_where_read_only(self) -> None:
        if reason := self.host_says_read_only():
            raise BusyError(reason)

    def said_of(self, act: Callable[[Folders], str]) -> str:
        """What something done on disk says, or in words why it was not done."""
        try:
            self.refuse_where_read_only()
            return markup.card("", markup.paragraph(act(self.host.folders)), mood="good")
        except (TrainingProError, OSError) as error:
            return markup.problem(in_words(error))


async def refused(session: Session, error: TrainingProError) -> AsyncIterator[str]:
    """Why a wish was refused; where a job has the model, until that is over, and then that it is."""
    busy = session.current
    yield markup.problem(str(error))
    if busy is None or not isinstance(error, BusyError):
        return
    async for _ in news(busy):
        pass
    yield markup.paragraph(f"{busy.title} is over: what was refused can be pressed again.", quiet=True)


async def news(job: Job) -> AsyncIterator[list[Event]]:
    """The events of a job that are new, whenever there are some, until it has ended."""
    position = 0
    while True:
        done, fresh = job.log.closed, job.log.since(position)
        position += len(fresh)
        if fresh:
            yield fresh
        if done:
            return
        await asyncio.sleep(PAUSE_SECONDS)


def said_last(fresh: Sequence[Event], before: str) -> str:
    """What to say of a job by its newest events; what was said before, where they say nothing."""
    telling = [event for event in fresh if isinstance(event, (Stage, Ended))]
    return markup.told(telling[-1]) if telling else before
