"""Host, engine and session for all parts of the page, and helpers that follow a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeVar

from ...core.engine import Engine
from ...core.errors import BusyError, SettingsError, TrainingProError, error_message
from ...core.host import Folders, Host
from ...core.jobs import Event, Job, JobEnded, Request, Session, Stage
from ...settings.definitions import TrainingSettings
from ...settings.parsing import training_settings
from . import markup
from .outdated import ResultInputs

if TYPE_CHECKING:
    from ...data.report import DatasetReport

POLL_SECONDS = 0.2
# Gradio notices that a page was closed only when its stream yields.
KEEPALIVE_SECONDS = 10
T = TypeVar("T")
Default = TypeVar("Default")


@dataclass(frozen=True)
class PageContext:
    """Host, engine and session, passed to every part of the page.

    `models` is the menu of models of the standalone page.
    """

    host: Host
    engine: Engine[TrainingSettings, DatasetReport]
    session: Session
    models: Any = None
    live_values: dict[str, Any] = field(default_factory=dict)
    """Saving and stopping rules that the form shows only because they are in force in the run in progress."""

    def read_only_reason(self) -> str:
        """Why this page is read-only, or empty. An error of the host is shown elsewhere on the page."""
        try:
            return self.host.read_only_reason
        except TrainingProError:
            return ""

    @property
    def in_run(self) -> bool:
        """Whether a run is in progress."""
        job = self.session.latest("training")
        return job is not None and job.running

    def is_training(self, name: str) -> bool:
        """Whether this LoRA is being trained right now."""
        job = self.session.current
        return job is not None and bool(name) and job.result_name == name

    def parse_settings(self, values: Mapping[str, object]) -> TrainingSettings:
        """Parse the form; a SettingsError lists all problems, including a missing model."""
        try:
            return training_settings(values)
        except SettingsError as error:
            missing = self.host.model_status().problem
            raise SettingsError([*error.problems, *([missing] if missing else [])]) from None

    def made_from(self, values: Mapping[str, Any]) -> ResultInputs:
        """The form and the current model, as the inputs of a result."""
        return ResultInputs(values, self.host.model_status().model)

    def check_writable(self) -> None:
        if reason := self.read_only_reason():
            raise BusyError(reason)

    def read_disk(self, read: Callable[[Folders], T], default: Default) -> T | Default:
        """Read something from the folders; the default if they cannot be read."""
        try:
            return read(self.host.folders)
        except (TrainingProError, OSError):
            return default

    def run_disk_action(self, action: Callable[[Folders], str]) -> str:
        """Run an action on the disk, and return its message or the error as HTML."""
        try:
            self.check_writable()
            return markup.card("", markup.paragraph(action(self.host.folders)), mood="good")
        except (TrainingProError, OSError) as error:
            return markup.problem(error_message(error))


async def follow_job(
    session: Session, start: Callable[[], Job], status: str = ""
) -> AsyncIterator[tuple[str, list[Event]]]:
    """Start a job, and yield its status with its new events; if it cannot start, why, without events."""
    try:
        job = start()
    except TrainingProError as error:
        async for refusal in follow_refusal(session, error):
            yield refusal, []
        return
    yield status, []
    async for events in follow_events(job):
        status = latest_status(events, status)
        yield status, events


def stop_job(job: Job | None) -> str:
    """Stop a job; the message is empty if it is not running."""
    if job is None or not job.running:
        return ""
    job.control.ask(Request.STOP)
    return markup.paragraph("Stopping.", quiet=True)


async def follow_refusal(session: Session, error: TrainingProError, *parts: str) -> AsyncIterator[str]:
    """Yield why a request was refused, then parts that are HTML. If a job uses the model, wait for its end."""
    job, refusal = session.current, markup.problem(str(error), *parts)
    if job is None or not isinstance(error, BusyError):
        yield refusal
        return
    async for _ in follow_changes(lambda: job.log.closed):
        if job.log.closed:
            break
        yield refusal
    yield markup.paragraph(f"{job.title} is done. You can try again now.", quiet=True)


async def follow_events(job: Job) -> AsyncIterator[list[Event]]:
    """Yield the new events of a job as they come, or none as a keepalive, until it has ended."""
    position, due = 0, time.monotonic() + KEEPALIVE_SECONDS
    while True:
        closed, events = job.log.closed, job.log.since(position)
        position += len(events)
        if events or time.monotonic() >= due:
            due = time.monotonic() + KEEPALIVE_SECONDS
            yield events
        if closed:
            return
        await asyncio.sleep(POLL_SECONDS)


async def follow_changes(read_state: Callable[[], object]) -> AsyncIterator[None]:
    """Yield at once, after every change of the state, and as a keepalive, for as long as the page is open."""
    shown: object = None
    due = 0.0
    while True:
        if (state := (read_state(),)) != shown or time.monotonic() >= due:
            shown, due = state, time.monotonic() + KEEPALIVE_SECONDS
            yield
        await asyncio.sleep(POLL_SECONDS)


def latest_status(events: Sequence[Event], previous: str) -> str:
    """The status of a job by its new events; the previous status if none of them changes it."""
    status_events = [event for event in events if isinstance(event, (Stage, JobEnded))]
    return markup.job_status(status_events[-1]) if status_events else previous
