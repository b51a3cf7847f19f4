"""Host, engine and session for all parts of the page, and helpers that follow a job."""

from __future__ import annotations

import asyncio
import time
from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeAlias, TypeVar

import gradio as gr
from markupsafe import Markup

from ...core.engine import Engine
from ...core.errors import BusyError, TrainingProError, error_message
from ...core.files import safe_paths
from ...core.host import Folders, Host
from ...core.jobs import Event, Job, JobEnded, JobFn, JobKind, Request, Session, Stage
from ...core.own_environment import remove_environment
from ...core.version import VERSION
from ...records.folder import PARAMETERS, is_in_progress, loras, read_journal, refuse_while_training
from ...settings import files, presets
from ...settings.definitions import FULL_FINETUNE, TrainingSettings
from ...settings.live_settings import LIVE_KEYS
from ...settings.parsing import training_settings
from ...train_utils import size
from . import markup
from .handlers import add_handler

if TYPE_CHECKING:
    from ...data.report import DatasetReport

# How often the streams of a page look for news. Each look takes time from the run.
POLL_SECONDS = 0.2
# Gradio notices that a page was closed only when its stream yields.
KEEPALIVE_SECONDS = 10
WAITING = markup.paragraph(
    "Waiting for the model. To end a reply that it is generating, press Stop in the Chat tab."
)
T = TypeVar("T")
Default = TypeVar("Default")
PageEngine: TypeAlias = "Engine[TrainingSettings, DatasetReport]"


@dataclass(frozen=True)
class ResultInputs:
    """The form and the model that a result was made from."""

    values: Mapping[str, Any]
    model: str

    def differs(self, other: ResultInputs) -> bool:
        """Whether a new result could differ from this one."""
        return self.model != other.model or bool(presets.differing_keys(self.values, other.values))


@dataclass
class LiveValues:
    """Saving and stopping rules that the form shows only because they are in force in a run, and this run."""

    values: dict[str, Any] = field(default_factory=dict)
    job: Job | None = None

    def of(self, job: Job | None) -> dict[str, Any]:
        return self.values if job is self.job else {}


@dataclass(frozen=True)
class PageContext:
    """Host, engine and session, passed to every part of the page."""

    host: Host
    engine: PageEngine
    session: Session
    models: Any = None  # the menu of models of the standalone page
    working: Any = None  # for the tabs after Train: a text box with the kind of the job that uses the model
    live: LiveValues = field(default_factory=LiveValues)

    def read_only_reason(self) -> str:
        """Why this page is read-only, or empty. An error of the host is shown elsewhere on the page."""
        try:
            return self.host.read_only_reason
        except TrainingProError:
            return ""

    def running_job(self, kind: JobKind) -> Job | None:
        job = self.session.latest(kind)
        return job if job is not None and job.running else None

    def require_job(self, kind: JobKind, missing: str) -> Job:
        """The running job of this kind, for a request to it; `missing` is the error if there is none."""
        self.check_writable()
        if (job := self.running_job(kind)) is None:
            raise BusyError(missing)
        return job

    @property
    def in_run(self) -> bool:
        return self.running_job("training") is not None

    def is_training(self, name: str) -> bool:
        job = self.session.current
        return job is not None and bool(name) and job.result_name == name

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

    def free_environment(self) -> None:
        """End the worker, because Windows can't replace or remove files in use; refuse while it works."""
        refuse_while_training(self.host.folders)
        if self.host.own_process is not None and (job := self.session.current) is not None:
            raise BusyError(f"{job.title} is running. Wait until it is done, or stop it first.")
        self.engine.close()

    def remove_environment(self, folders: Folders) -> str:
        """Remove the environment of training processes, unless a run may be using it; returns a message."""
        self.free_environment()
        return remove_environment(folders)

    def model_line(self) -> str:
        """The status line: the model, the memory in use, and why the page is read-only or can't train."""
        status, memory, title = self.host.model_status(), self.host.memory(), f"Training PRO {VERSION}"
        reason = self.read_only_reason()
        read_only = markup.paragraph(reason, quiet=True) if reason else ""
        # Rounded, so that small changes are not sent to the page.
        used = f"{memory.used / 1e9:.0f} of {size(memory.total)} of memory in use ({memory.device})"
        if not memory.total or self.host.own_process is not None:  # the GPU of that process is not seen from here
            used = ""
        attached = f"LoRA attached: {', '.join(status.loras)}" if status.loras else ""
        if status.problem:
            details = [markup.paragraph(part, quiet=True) for part in (attached, used) if part]
            return markup.card(title, markup.paragraph(status.problem), *details, read_only, mood="fair")
        parts = [f"{status.model}, {status.precision}", used, attached]
        return markup.card("", markup.paragraph(f"{title}: " + " · ".join(p for p in parts if p)), read_only)

    def can_resume(self, name: str) -> bool:
        """Whether the run was stopped, failed or crashed, and left its settings and where to go on from."""
        folder = self.host.folders.loras / name
        if not name or loras.run_status(folder) not in ("stopped", "failed", "cut off"):
            return False
        journal = read_journal(folder)
        goes_on = loras.resumable_checkpoints(folder) or (journal and journal.initial_lora)
        return bool(goes_on and (folder / PARAMETERS).is_file())

    def resume_run(self, folder: Path, checkpoint: str = "newest") -> str:
        """Start the run of a folder, of a LoRA or of a whole model, again where it ended; returns a message."""
        self.check_writable()
        name = folder.name
        loaded = files.load_settings(folder / PARAMETERS, self.host.folders.datasets)
        # The name comes from the folder, because the user may have renamed it.
        settings = training_settings({**loaded.values, "name": name, "if_exists": "continue"})
        work = partial(self.engine.train, settings, self.host, resume=checkpoint)
        self.live.job = self.session.train(name, self.host, work)
        self.live.values = {key: settings.values()[key] for key in LIVE_KEYS}
        return f"Resuming {name}."

    def describe_existing_name(self, name: str | None, chosen: str, method: str) -> Markup:
        """A line with a button for each way to proceed; empty if the name can be used."""
        if not name or not name.strip() or self.is_training(name):
            return Markup()
        try:
            folders = self.host.folders
            folder = safe_paths.child(folders.output_folder(full_finetune=method == FULL_FINETUNE), name, "Name")
            status = loras.run_status(folder)
            if status == "nothing":
                return Markup()
            if is_in_progress(folder.name, folders):
                return markup.paragraph(f"{folder.name} is being trained now, by another program.")
            go_on = "resume it"
            if status in ("finished", "made elsewhere"):  # a full model that is complete can't be continued
                go_on = "continue training it" if loras.has_lora(folder) else ""
            labels = {
                "continue": go_on,
                "replace": "replace it (a backup is kept)",
                "new_name": f"use a new name: {loras.free_name(folder.parent, folder.name)}",
            }
            buttons = Markup("").join(
                markup.apply_button(label, {"if_exists": choice}, chosen=choice == chosen)
                for choice, label in labels.items()
                if label
            )
            line = Markup('<p class="tp-quiet">{} already exists: {}. {}</p>')
            return line.format(name, loras.describe_folder(folder), buttons)
        except (TrainingProError, OSError, ValueError):  # also a name that is too long for the file system
            return Markup()

    async def follow_job(
        self,
        kind: JobKind,
        title: str,
        work: JobFn,
        status: str = "",
        *,
        on_model: bool = True,
        writes: bool = True,
    ) -> AsyncIterator[tuple[str, list[Event]]]:
        """Start a job, and yield its status with its new events; a job that can't start is an error."""
        if writes:
            self.check_writable()
        start = partial(self.session.start, host=self.host) if on_model else self.session.start_without_model
        job = start(kind, title, work=work)
        status = status or (WAITING if kind == "model" else "")
        yield status, []
        position = 0
        async for _ in follow_changes(lambda: (len(job.log), job.log.closed)):
            # In this order: what is logged before the log is closed must not be missed.
            closed, events = job.log.closed, job.log.since(position)
            position += len(events)
            for event in events:
                if isinstance(event, (Stage, JobEnded)):
                    status = markup.job_status(event)
            yield status, events
            if closed:
                return

    async def follow_latest(self, kind: JobKind) -> AsyncIterator[Job | None]:
        """Yield the latest job of this kind at once and after every change, for as long as the page is open."""

        def state() -> object:
            job = self.session.latest(kind)
            return job and (id(job), len(job.log), job.running, job.control.asked(Request.STOP))

        async for _ in follow_changes(state):
            yield self.session.latest(kind)

    async def attach_lora(self, name: str, strength: float = 1.0) -> AsyncIterator[str]:
        work = partial(self.engine.attach_lora, name, strength, self.host)
        async for status, _ in self.follow_job("model", f"Attaching {name}", work):
            yield status


class StopButton:
    """Enabled only while such a job is running, on every page, also after an error or a reload.

    That of a job that does not use the model can always be pressed, because no page follows such jobs.
    """

    def __init__(self, context: PageContext, kind: JobKind, elem_id: str, *, on_model: bool = True) -> None:
        self._context, self._kind = context, kind
        self._working = context.working if on_model else None
        self._button = gr.Button("Stop", interactive=not on_model, elem_id=elem_id)

    def connect(self, status: Any) -> None:
        """Register the events; `status` shows that the job is stopping, and how it ended."""

        async def stop() -> AsyncIterator[str]:
            job = self._context.running_job(self._kind)
            if job is None:
                yield ""
                return
            job.control.ask(Request.STOP)
            yield markup.paragraph("Stopping.", quiet=True)
            # A page that was reloaded while the job ran has no stream of its own that would show its end.
            while job.end is None:
                await asyncio.sleep(POLL_SECONDS)
            yield markup.job_status(job.end)

        def update(kind: str) -> Any:
            return gr.update(interactive=kind == self._kind and not self._context.read_only_reason())

        add_handler(self._button.click, stop, None, status, what="Stop")
        if (working := self._working) is not None:  # a stream of its own would block others
            add_handler(working.change, update, working, self._button, what="Showing the Stop button")


async def follow_changes(read_state: Callable[[], object]) -> AsyncIterator[None]:
    """Yield at once, after every change of the state, and as a keepalive, for as long as the page is open."""
    shown: object = None
    due = 0.0
    while True:
        state = read_state()
        if state != shown or time.monotonic() >= due:
            shown, due = state, time.monotonic() + KEEPALIVE_SECONDS
            yield
        await asyncio.sleep(POLL_SECONDS)
