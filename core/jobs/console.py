"""A job told in lines of text, for a console; a thread of its own reads the log and writes them."""

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
    """Turns events into lines; of the steps it tells one every two seconds, and the last.

    What a run takes of the machine stands at the end of such a line, once in a minute.
    """

    def __init__(self) -> None:
        self._pace = Pace()
        self._told = float("-inf")
        self._heard: set[str] = set()
        self._machine: MachineUse | None = None
        self._machine_told = float("-inf")

    def line(self, event: Event) -> str:
        self._pace.hear(event)
        tell = _TELL.get(type(event))
        return tell(self, event) if tell else ""

    def _progress(self, event: Progress) -> str:
        if event.at - self._told < PAUSE_SECONDS and event.step != event.steps:
            return ""
        self._told = event.at
        return (
            f"step {event.step}/{event.steps}  epoch {event.epoch:.2f}  loss {event.loss:.4f} "
            f"(smoothed {event.smoothed:.4f})  learning rate {event.learning_rate:.3g}  "
            f"{self._pace.tokens_a_second:.0f} tokens/s  {self._left(event.at)}{self._taken(event.at)}"
        )

    def _look(self, event: MachineUse) -> str:
        self._machine = event
        return ""

    def _taken(self, now: float) -> str:
        if self._machine is None or now - self._machine_told < MACHINE_SECONDS:
            return ""
        self._machine_told = now
        return f"  {self._machine.words}"

    def _left(self, now: float) -> str:
        """How long the rest takes, and where that is over a minute, until when."""
        left = self._pace.seconds_left
        until = f", done about {time_of_day(now + left, now)}" if left > 60 else ""
        return f"{duration(round(left))} left{until}"

    def _stage(self, event: Stage) -> str:
        share = "" if event.share is None else f" {event.share:.0%}"
        return f"{event.text}{share} ..."

    def _fetched(self, event: Fetched) -> str:
        """One in ten seconds, and the last."""
        if event.at - self._told < FETCHED_SECONDS and event.done < event.total:
            return ""
        self._told = event.at
        return f"{event.share:.0%}  {event.words}"

    def _limited(self, event: TimeLimited) -> str:
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

    def _live(self, event: LiveChanged) -> str:
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
        return f"Step {event.step}, {_in_short(event.prompt)} -> {_in_short(event.text)}"

    def _probed(self, event: Probed) -> str:
        known = [f"longest batch: {event.batch_size} {plural(event.batch_size, 'example')}, {event.tokens} tokens"]
        if event.too_large:
            known.append(f"{event.too_large} examples at once do not fit")
        known.append(f"{duration(event.seconds)} a step, {event.run_words}")
        if event.peak:
            known.append(f"{size(event.peak)} above the model (expected {size(event.expected)})")
        if event.free:
            known.append(f"{size(event.free)} free")
        if event.largest_batch:
            known.append(f"largest batch that fits {event.largest_batch}")
        changes = ", ".join(f"{key} = {value}" for key, value in event.fitting.items())
        return "; ".join(known) + (f". It would fit with {changes}" if changes else "") + "."

    def _text(self, event: Note | Advice) -> str:
        return event.text

    def _library(self, event: LibraryMessage) -> str:
        """A warning's further lines quote the library's own source; what it tells other developers, or has told
        already in this job, is left out."""
        first = event.text.partition("\n")[0]
        if first in self._heard or any(sign in first for sign in TO_DEVELOPERS):
            return ""
        self._heard.add(first)
        return first

    def _ended(self, event: Ended) -> str:
        return "\n".join(part for part in (event.text, event.details) if part)


def _in_short(text: str) -> str:
    """The beginning of a text, on one line."""
    return repr(shorten(text, IN_SHORT, placeholder=" ..."))


_TELL: Mapping[type, Callable[[Narrator, Any], str]] = {
    Progress: Narrator._progress,
    MachineUse: Narrator._look,
    Stage: Narrator._stage,
    Fetched: Narrator._fetched,
    TimeLimited: Narrator._limited,
    Planned: Narrator._planned,
    Replanned: Narrator._replanned,
    LiveChanged: Narrator._live,
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
    """Write the job's lines as they come, until it ends."""
    narrator = Narrator()
    for event in job.log.follow():
        if line := narrator.line(event):
            further = line.replace("\n", "\n          ")  # under the words of the first line
            write(f"{time.strftime('%H:%M:%S', time.localtime(event.at))}  {further}")


def telling(write: Write) -> Callable[[Job], None]:
    """A follower for Session.tell_with: each job is told by a thread that nobody waits for."""

    def follow(job: Job) -> None:
        threading.Thread(target=tell, args=(job, write), name="console", daemon=True).start()

    return follow
