"""Console output of a job: its events as lines of text, written by a separate thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

from ...train_utils import duration, plural, size, time_of_day
from .eta import EtaEstimator
from .events import (
    Advice,
    CheckpointSaved,
    DownloadProgress,
    EvaluationDone,
    Event,
    JobEnded,
    LibraryMessage,
    LiveSettingsChanged,
    MachineUse,
    Note,
    PerplexityMeasured,
    PlanChanged,
    ProbeDone,
    Progress,
    RunPlanned,
    SampleGenerated,
    Stage,
    StartedFromQueue,
    TimeLimited,
)
from .job import Job

WriteLine = Callable[[str], object]
STEP_LINE_SECONDS = 2.0
MACHINE_LINE_SECONDS = 60.0
DOWNLOAD_LINE_SECONDS = 10.0
MAX_TEXT_CHARS = 100  # characters of a prompt, and of its answer
DEVELOPER_WARNINGS = ("FutureWarning: ", "DeprecationWarning: ")


class EventFormatter:
    """Formats events as lines; prints at most one step every two seconds, and the last step.

    Once a minute, the line of a step ends with the use of the machine.
    """

    def __init__(self) -> None:
        self._pace = EtaEstimator()
        self._last_shown = float("-inf")
        self._messages: set[str] = set()
        self._machine: MachineUse | None = None
        self._machine_shown = float("-inf")

    def line(self, event: Event) -> str:
        self._pace.update(event)
        formatter = _FORMATTERS.get(type(event))
        return formatter(self, event) if formatter else ""

    def _progress(self, event: Progress) -> str:
        if event.at - self._last_shown < STEP_LINE_SECONDS and event.step != event.steps:
            return ""
        self._last_shown = event.at
        return (
            f"step {event.step}/{event.steps}  epoch {event.epoch:.2f}  loss {event.loss:.4f} "
            f"(smoothed {event.smoothed:.4f})  learning rate {event.learning_rate:.3g}  "
            f"{self._pace.tokens_per_second:.0f} tokens/s  "
            f"{self._time_left(event.at)}{self._machine_use(event.at)}"
        )

    def _note_machine(self, event: MachineUse) -> str:
        self._machine = event
        return ""

    def _machine_use(self, now: float) -> str:
        if self._machine is None or now - self._machine_shown < MACHINE_LINE_SECONDS:
            return ""
        self._machine_shown = now
        return f"  {self._machine.words}"

    def _time_left(self, now: float) -> str:
        """Time left and, if it is more than a minute, the time of day of the end."""
        seconds = self._pace.seconds_left
        end = f", done about {time_of_day(now + seconds, now)}" if seconds > 60 else ""
        return f"{duration(round(seconds))} left{end}"

    def _stage(self, event: Stage) -> str:
        share = "" if event.share is None else f" {event.share:.0%}"
        return f"{event.text}{share} ..."

    def _fetched(self, event: DownloadProgress) -> str:
        """One line in ten seconds, and the last."""
        if event.at - self._last_shown < DOWNLOAD_LINE_SECONDS and event.done < event.total:
            return ""
        self._last_shown = event.at
        return f"{event.share:.0%}  {event.words}"

    def _time_limited(self, event: TimeLimited) -> str:
        return f"At most {duration(event.seconds)} from the first step on."

    def _planned(self, event: RunPlanned) -> str:
        disk = f" Disk: {event.disk}." if event.disk else ""
        steps = f"{event.steps} {plural(event.steps, 'step')}, {event.steps_per_epoch} an epoch."
        return f"Training '{event.name}' on {event.model}: {steps}{disk}"

    def _saved(self, event: CheckpointSaved) -> str:
        return f"Checkpoint saved at step {event.step}: {event.folder}"

    def _evaluated(self, event: EvaluationDone) -> str:
        gain = "" if event.context_gain is None else f", context gain {event.context_gain:.4f}"
        parts = "".join(f", {name} {loss:.4f}" for name, loss in event.by_source.items())
        return (
            f"Kept aside, step {event.step}: loss {event.loss:.4f}, perplexity {event.perplexity:.4g}, "
            f"{event.accuracy:.1%} of the tokens right{parts}{gain}"
        )

    def _live_changed(self, event: LiveSettingsChanged) -> str:
        changes = ", ".join(f"{key} {now} (was {then})" for key, (then, now) in event.changes.items())
        return f"From after step {event.step} on: {changes}."

    def _replanned(self, event: PlanChanged) -> str:
        rest = event.rates[event.step :]
        now = f", the learning rate goes from {rest[0]:.3g} to {rest[-1]:.3g}" if rest else ""
        return f"The plan after step {event.step}, {event.why}: the last step is {event.steps}{now}."

    def _perplexity(self, event: PerplexityMeasured) -> str:
        lora = "without a LoRA" if event.lora == "-" else f"with {event.lora}"
        return (
            f"{event.dataset} {lora}: perplexity {event.perplexity:.4f}, {event.right:.1%} of "
            f"{event.tokens:,} tokens right ({duration(event.seconds)})"
        )

    def _sampled(self, event: SampleGenerated) -> str:
        return f"Step {event.step}, {_shorten(event.prompt)} -> {_shorten(event.text)}"

    def _probed(self, event: ProbeDone) -> str:
        parts = [f"longest batch: {event.batch_size} {plural(event.batch_size, 'example')}, {event.tokens} tokens"]
        if event.too_large:
            parts.append(f"{event.too_large} examples at once do not fit")
        parts.append(f"{duration(event.seconds)} a step, {event.run_summary}")
        if event.peak:
            parts.append(f"{size(event.peak)} above the model (expected {size(event.expected)})")
        if event.free:
            parts.append(f"{size(event.free)} free")
        if event.largest_batch:
            parts.append(f"largest batch that fits {event.largest_batch}")
        changes = ", ".join(f"{key} = {value}" for key, value in event.fitting.items())
        return "; ".join(parts) + (f". It would fit with {changes}" if changes else "") + "."

    def _text(self, event: Note | Advice) -> str:
        return event.text

    def _library(self, event: LibraryMessage) -> str:
        """First line of a message; the further lines of a warning quote the library's source.

        Warnings for developers and repeated messages are left out.
        """
        first = event.text.partition("\n")[0]
        if first in self._messages or any(sign in first for sign in DEVELOPER_WARNINGS):
            return ""
        self._messages.add(first)
        return first

    def _ended(self, event: JobEnded) -> str:
        return "\n".join(part for part in (event.text, event.details) if part)


def _shorten(text: str) -> str:
    """Beginning of a text, on one line."""
    return repr(shorten(text, MAX_TEXT_CHARS, placeholder=" ..."))


_FORMATTERS: Mapping[type, Callable[[EventFormatter, Any], str]] = {
    Progress: EventFormatter._progress,
    MachineUse: EventFormatter._note_machine,
    Stage: EventFormatter._stage,
    DownloadProgress: EventFormatter._fetched,
    TimeLimited: EventFormatter._time_limited,
    RunPlanned: EventFormatter._planned,
    PlanChanged: EventFormatter._replanned,
    LiveSettingsChanged: EventFormatter._live_changed,
    CheckpointSaved: EventFormatter._saved,
    EvaluationDone: EventFormatter._evaluated,
    PerplexityMeasured: EventFormatter._perplexity,
    SampleGenerated: EventFormatter._sampled,
    ProbeDone: EventFormatter._probed,
    Note: EventFormatter._text,
    StartedFromQueue: EventFormatter._text,
    Advice: EventFormatter._text,
    LibraryMessage: EventFormatter._library,
    JobEnded: EventFormatter._ended,
}


def print_events(job: Job, write: WriteLine) -> None:
    """Write the lines of a job until it ends."""
    narrator = EventFormatter()
    for event in job.log.follow():
        if line := narrator.line(event):
            text = line.replace("\n", "\n          ")  # indented to the text of the first line
            write(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {text}")


def console_observer(write: WriteLine) -> Callable[[Job], None]:
    """Observer for `Session.tell_with` that writes each job in a daemon thread."""

    def follow(job: Job) -> None:
        threading.Thread(target=print_events, args=(job, write), name="console", daemon=True).start()

    return follow
