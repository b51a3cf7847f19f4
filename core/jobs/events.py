"""What a job tells while it runs, and the log that any number of pages follow."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any, Literal

from ...train_utils import duration, perplexity, plural, size
from ..errors import Remedy

Outcome = Literal["finished", "stopped", "failed"]
Occasion = Literal["start", "planned", "asked", "end"]
"""Why something is measured: before the first step, by plan, at a wish, or because the run ends."""
LOOK_SECONDS = 1.0
FEW_ROWS = 5
"""Of those that are known least and best so many are shown."""


@dataclass(frozen=True, kw_only=True)
class Event:
    """Something that happened, with the time of day."""

    at: float = field(default_factory=time.time)


@dataclass(frozen=True, kw_only=True)
class Stage(Event):
    """What the job is at now; `share` is how much of it is done, where that is known."""

    text: str
    share: float | None = None


@dataclass(frozen=True, kw_only=True)
class Fetched(Event):
    """So many bytes of a download are here."""

    done: int
    total: int
    speed: float  # bytes a second, lately; 0 where none came

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0

    @property
    def words(self) -> str:
        """'180 MB of 1.5 GB, 5.1 MB/s, 4 min 20 s left'."""
        lacking = self.total - self.done
        left = f", {size(self.speed)}/s, {duration(lacking / self.speed)} left" if lacking and self.speed else ""
        return f"{size(self.done)} of {size(self.total)}{left}"


@dataclass(frozen=True, kw_only=True)
class Planned(Event):
    """The run as it was resolved, before its first step."""

    name: str
    model: str
    steps: int
    steps_per_epoch: int
    first_step: int
    rates: tuple[float, ...]
    settings: Mapping[str, object]
    earlier: tuple[Mapping[str, Any], ...] = ()
    """The curve of a run that goes on, up to where it begins again: entries as in training_graph.json."""
    disk: str = ""
    """What the run will write, and what is free, in words."""
    evaluate_every: int = 0
    answer_every: int = 0
    """After so many steps, before the first and at the end; 0 is never."""


@dataclass(frozen=True, kw_only=True)
class TimeLimited(Event):
    """The run ends so many seconds after its first step, if its plan has not ended it before."""

    seconds: float


@dataclass(frozen=True, kw_only=True)
class Progress(Event):
    """One step done: one change of the weights."""

    step: int
    steps: int
    epoch: float
    loss: float
    smoothed: float
    learning_rate: float
    gradient_norm: float | None
    tokens: int
    seconds: float
    beside: float = 0.0
    """Seconds since the step before it that belong to none: evaluating, answering, saving; no pauses."""
    by_source: Mapping[str, float] = field(default_factory=dict)
    """The mean loss of each data set in this step, where there are several."""
    phase: str = ""
    """What the step was in, where the order of the examples has several phases."""


@dataclass(frozen=True, kw_only=True)
class MachineUse(Event):
    """What the run takes of the machine; None is what the machine does not tell."""

    cards: int  # 0 where there is none: then it is the memory of the machine itself
    peak: int  # bytes that were held at most since the run began, the model included
    total: int = 0  # bytes that there are
    busy: int | None = None  # per cent of the time
    celsius: int | None = None  # of the hottest card
    watts: int | None = None  # of all cards together

    @property
    def words(self) -> str:
        """'graphics card: at most 12.3 GB of 24 GB so far, 98 % busy, 71 \u00b0C, 285 W'."""
        what = plural(self.cards, "graphics card") if self.cards else "memory of the whole program"
        there = f" of {size(self.total)}" if self.total else ""
        readings = ((self.busy, "% busy"), (self.celsius, "\u00b0C"), (self.watts, "W"))
        told = "".join(f", {value} {unit}" for value, unit in readings if value is not None)
        return f"{what}: at most {size(self.peak)}{there} so far{told}"


def most_memory(events: Iterable[Event]) -> int:
    """What a run took at most, by what was seen of it; 0 where nothing was."""
    return max((event.peak for event in events if isinstance(event, MachineUse)), default=0)


@dataclass(frozen=True, kw_only=True)
class Evaluated(Event):
    """The part kept aside was gone through, without learning from it, after so many steps.

    `by_source` is the loss of each data set, where there are several. `context_gain` is by how much the loss of
    what goes on from something is lower when the model reads that first; None where nothing goes on.
    """

    step: int
    epoch: float
    why: Occasion
    loss: float
    perplexity: float
    accuracy: float
    tokens: int
    seconds: float
    by_source: Mapping[str, float] = field(default_factory=dict)
    context_gain: float | None = None


@dataclass(frozen=True, kw_only=True)
class Replanned(Event):
    """The plan has changed after this step: the last step now, and the rates of all of them, done or planned."""

    step: int
    steps: int
    rates: tuple[float, ...]
    why: str


@dataclass(frozen=True, kw_only=True)
class LiveChanged(Event):
    """Settings that took effect after this step: by their keys, as they were and as they are."""

    step: int
    changes: Mapping[str, tuple[object, object]]


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A full checkpoint is on disk, whole."""

    step: int
    folder: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Worth knowing; nothing to do."""

    text: str


@dataclass(frozen=True, kw_only=True)
class FromQueue(Note):
    """Nobody pressed Start for this run: it stood in a queue, and this was its turn."""


@dataclass(frozen=True, kw_only=True)
class Advice(Event):
    """Worth knowing, and something could be done about it."""

    text: str


@dataclass(frozen=True, kw_only=True)
class LibraryMessage(Event):
    """What a library said while the job ran: for the console, not for the page."""

    source: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Answer(Event):
    """A piece of an answer of the model's: `side` says with which LoRA, or with none."""

    side: Literal["with", "without"]
    piece: str


@dataclass(frozen=True, kw_only=True)
class Sampled(Event):
    """A prompt answered in the middle of a run: by the LoRA as it is after so many steps, and without it."""

    step: int
    prompt: str
    text: str
    without: str


@dataclass(frozen=True, kw_only=True)
class Probed(Event):
    """One step was tried on the longest batch, and nothing changed by it; 0 is what is not known here."""

    device: str
    batch_size: int
    tokens: int
    seconds: float  # a whole step, accumulation included
    steps: int
    run_seconds: float
    peak: int  # bytes that a run takes at most, above the loaded model
    expected: int  # what Check's estimate says of the same
    free: int  # bytes that a run may take above the loaded model
    largest_batch: int = 0
    too_large: int = 0  # so many examples at once did not fit; what is said is of fewer
    fitting: Mapping[str, object] = field(default_factory=dict)  # memory settings to change so that it fits
    evaluations: int = 0  # of the part kept aside, in the run
    evaluation_seconds: float = 0.0  # of one, by a part of it
    answers: int = 0  # to the sample prompts, in the run
    answer_seconds: float = 0.0  # of one at most, by its beginning

    @property
    def beside(self) -> list[tuple[str, str]]:
        """What the run does beside its steps, and how long that takes, as far as it is known."""
        known = (
            (self.evaluations, "evaluation", "about", self.evaluation_seconds),
            (self.answers, "answer", "at most about", self.answer_seconds),
        )
        return [
            (f"{count:,} {plural(count, one)}", f"{bound} {duration(count * seconds)}")
            for count, one, bound, seconds in known
            if count and seconds
        ]

    @property
    def run_words(self) -> str:
        """'about 5 min for the run, 3 evaluations about 20 s more'."""
        more = "".join(f", {what} {how_long} more" for what, how_long in self.beside)
        return f"about {duration(self.run_seconds)} for the run{more}"

    @property
    def fits(self) -> bool:
        """Whether a run with these settings goes into the memory that is free, no batch being halved."""
        return not (self.too_large or (self.free and self.peak > self.free))


@dataclass(frozen=True, kw_only=True)
class Known:
    """How well so many tokens are known: their mean loss, and the share that the model's first guess was."""

    tokens: int
    loss: float
    right: float

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)


@dataclass(frozen=True, kw_only=True)
class Stretch(Known):
    """One of many equal stretches of a text, or of a data set of rows, and how it begins."""

    begins: str


@dataclass(frozen=True, kw_only=True)
class KnownRow(Known):
    """A row: where it stands, what is read before that of it which counts, and how that begins."""

    place: str
    read: str
    begins: str


@dataclass(frozen=True, kw_only=True)
class PerplexityFound(Event):
    """The perplexity of a data set: a row of the table. `lora` is '-' for the model without one.

    `right` is the share of the tokens that the model's first guess was, `stretches` the same along the data. Rows
    have no stride (0), and `rows` are those that are told, the least known first: all of them, or where there are
    very many the same number from each end.
    """

    model: str
    lora: str
    dataset: str
    perplexity: float
    loss: float
    tokens: int
    stride: int
    max_length: int
    seconds: float
    right: float
    stretches: tuple[Stretch, ...] = ()
    rows: tuple[KnownRow, ...] = ()

    @property
    def least_known(self) -> tuple[KnownRow, ...]:
        """A few rows to look at, the worst first; none of them is among the best known too."""
        return self.rows[: self._few]

    @property
    def best_known(self) -> tuple[KnownRow, ...]:
        """A few, the best first."""
        return self.rows[::-1][: self._few]

    @property
    def _few(self) -> int:
        return min(FEW_ROWS, len(self.rows) // 2)


@dataclass(frozen=True, kw_only=True)
class Ended(Event):
    """The last event of every job. `details` is for whoever wants to look under the bonnet."""

    outcome: Outcome
    text: str
    folder: Path | None = None
    details: str = ""
    time_over: bool = False
    """Whether a run ended because it had its time, before its plan did."""
    verdict: str = ""
    """How well a run learned, in a few words: 'began to memorize'. The whole of it stands in `text`."""
    remedies: tuple[Remedy, ...] = ()
    """What may help after a failure, the most helpful first."""


class EventLog:
    """Append by one, follow by many, replay from the first; nobody who follows can hold the writer up."""

    def __init__(self) -> None:
        self._events: list[Event] = []
        self._closed = False
        self._changed = threading.Condition()

    def append(self, event: Event) -> None:
        with self._changed:
            self._events.append(event)
            self._changed.notify_all()

    def close(self) -> None:
        with self._changed:
            self._closed = True
            self._changed.notify_all()

    @property
    def closed(self) -> bool:
        return self._closed

    def wait_closed(self) -> None:
        """Come back when the last event is in; on Windows Ctrl+C is heard only between two waits."""
        with self._changed:
            while not self._closed:
                self._changed.wait(LOOK_SECONDS)

    def __len__(self) -> int:
        return len(self._events)

    def since(self, position: int) -> list[Event]:
        """The events from `position` on, at once."""
        with self._changed:
            return self._events[position:]

    def follow(self) -> Iterator[Event]:
        """Every event from the first on, as they come, until the log is closed."""
        position = 0
        while True:
            with self._changed:
                self._changed.wait_for(partial(self._is_new, position), LOOK_SECONDS)
                fresh, closed = self._events[position:], self._closed
            yield from fresh
            position += len(fresh)
            if closed and position == len(self._events):
                return

    def _is_new(self, position: int) -> bool:
        return self._closed or len(self._events) > position
