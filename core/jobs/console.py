"""Console output of a job: its events as lines of text, written by a separate thread."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Mapping
from textwrap import shorten
from typing import Any

from ...train_utils import duration, plural, size, time_of_day
from .eta import Pace
from .events import (
    Advice,
    CheckpointSaved,
    Ended,
    Evaluated,
    Event,
    Fetched,
    FromQueue,
    LibraryMessage,
    LiveChanged,
    MachineUse,
    Note,
    PerplexityFound,
    Planned,
    Probed,
    Progress,
    Replanned,
    Sampled,
    Stage,
    TimeLimited,
)
from .job import Job

Write = Callable[[str], object]
PAUSE_SECONDS = 2.0
MACHINE_SECONDS = 60.0
FETCHED_SECONDS = 10.0
IN_SHORT = 100  # characters of a prompt, and of its answer
TO_DEVELOPERS = ("FutureWarning: ", "DeprecationWarning: ")


class Narrator:
    """Formats events as lines; prints at most one step every two seconds, and the last step.

    Once a minute, the line of a step ends with the use of the machine.
    """

    def __init__(self) -> None:
        self._pace = Pace()
        self._last_shown = float("-inf")
        self._messages: set[str] = set()
        self._machine: MachineUse | None = None
        self._machine_shown = float("-inf")

    def line(self, event: Event) -> str:
        self._pace.hear(event)
        formatter = _FORMATTERS.get(type(event))
        return formatter(self, event) if formatter else ""

    def _progress(self, event: Progress) -> str:
        if event.at - self._last_shown < PAUSE_SECONDS and event.step != event.steps:
            return ""
        self._last_shown = event.at
        return (
            f"step {event.step}/{event.steps}  epoch {event.epoch:.2f}  loss {event.loss:.4f} "
            f"(smoothed {event.smoothed:.4f})  learning rate {event.learning_rate:.3g}  "
            f"{self._pace.tokens_a_second:.0f} tokens/s  {self._time_left(event.at)}{self._machine_use(event.at)}"
        )

    def _note_machine(self, event: MachineUse) -> str:
        self._machine = event
        return ""

    def _machine_use(self, now: float) -> str:
        if self._machine is None or now - self._machine_shown < MACHINE_SECONDS:
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

    def _fetched(self, event: Fetched) -> str:
        """One line in ten seconds, and the last."""
        if event.at - self._last_shown < FETCHED_SECONDS and event.done < event.total:
            return ""
        self._last_shown = event.at
        return f"{event.share:.0%}  {event.words}"

    def _time_limited(self, event: TimeLimited) -> str:
        return f"At most {duration(event.seconds)} from the first step on."

    def _planned(self, event: Planned) -> str:
        disk = f" Disk: {event.disk}." if event.disk else ""
        steps = f"{event.steps} {plural(event.steps, 'step')}, {event.steps_per_epoch} an epoch."
        return f"Training '{event.name}' on {event.model}: {steps}{disk}"

    def _saved(self, event: CheckpointSaved) -> str:
        return f"Checkpoint saved at step {event.step}: {event.folder}"

    def _evaluated(self, event: Evaluated) -> str:
        gain = "" if event.context_gain is None else f", context gain {event.context_gain:.4f}"
        parts = "".join(f", {name} {loss:.4f}" for name, loss in event.by_source.items())
        return (
            f"Kept aside, step {event.step}: loss {event.loss:.4f}, perplexity {event.perplexity:.4g}, "
            f"{event.accuracy:.1%} of the tokens right{parts}{gain}"
        )

    def _live_changed(self, event: LiveChanged) -> str:
        changes = ", ".join(f"{key} {now} (was {then})" for key, (then, now) in event.changes.items())
        return f"From after step {event.step} on: {changes}."

    def _replanned(self, event: Replanned) -> str:
        rest = event.rates[event.step :]
        now = f", the learning rate goes from {rest[0]:.3g} to {rest[-1]:.3g}" if rest else ""
        return f"The plan after step {event.step}, {event.why}: the last step is {event.steps}{now}."

    def _perplexity(self, event: PerplexityFound) -> str:
        lora = "without a LoRA" if event.lora == "-" else f"with {event.lora}"
        return (
            f"{event.dataset} {lora}: perplexity {event.perplexity:.4f}, {event.right:.1%} of "
            f"{event.tokens:,} tokens right ({duration(event.seconds)})"
        )

    def _sampled(self, event: Sampled) -> str:
        return f"Step {event.step}, {_shorten(event.prompt)} -> {_shorten(event.text)}"

    def _probed(self, event: Probed) -> str:
        parts = [f"longest batch: {event.batch_size} {plural(event.batch_size, 'example')}, {event.tokens} tokens"]
        if event.too_large:
            parts.append(f"{event.too_large} examples at once do not fit")
        parts.append(f"{duration(event.seconds)} a step, {event.run_words}")
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
        if first in self._messages or any(sign in first for sign in TO_DEVELOPERS):
            return ""
        self._messages.add(first)
        return first

    def _ended(self, event: Ended) -> str:
        return "\n".join(part for part in (event.text, event.details) if part)


def _shorten(text: str) -> str:
    """Beginning of a text, on one line."""
    return repr(shorten(text, IN_SHORT, placeholder=" ..."))


_FORMATTERS: Mapping[type, Callable[[Narrator, Any], str]] = {
    Progress: Narrator._progress,
    MachineUse: Narrator._note_machine,
    Stage: Narrator._stage,
    Fetched: Narrator._fetched,
    TimeLimited: Narrator._time_limited,
    Planned: Narrator._planned,
    Replanned: Narrator._replanned,
    LiveChanged: Narrator._live_changed,
    CheckpointSaved: Narrator._saved,
    Evaluated: Narrator._evaluated,
    PerplexityFound: Narrator._perplexity,
    Sampled: Narrator._sampled,
    Probed: Narrator._probed,
    Note: Narrator._text,
    FromQueue: Narrator._text,
    Advice: Narrator._text,
    LibraryMessage: Narrator._library,
    Ended: Narrator._ended,
}


def tell(job: Job, write: Write) -> None:
    """Write the lines of a job until it ends."""
    narrator = Narrator()
    for event in job.log.follow():
        if line := narrator.line(event):
            text = line.replace("\n", "\n          ")  # indented to the text of the first line
            write(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {text}")


def telling(write: Write) -> Callable[[Job], None]:
    """Observer for `Session.tell_with` that writes each job in a daemon thread."""

    def follow(job: Job) -> None:
        threading.Thread(target=tell, args=(job, write), name="console", daemon=True).start()

    return follow
