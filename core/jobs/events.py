"""Events of a job: values without words, which are made in `event_words`."""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from enum import Enum
from itertools import groupby
from pathlib import Path
from statistics import fmean
from typing import Any, Literal

from ...train_utils import perplexity
from ..errors import Remedy

Outcome = Literal["finished", "stopped", "failed"]
# Why an evaluation or sample was made: before the first step, by plan, on request, or at the end.
Trigger = Literal["start", "planned", "asked", "end"]
# Number of rows shown from each end of the ranking by perplexity.
MAX_SHOWN_ROWS = 5


@dataclass(frozen=True, kw_only=True, slots=True)
class Event:
    """Something that happened, with its time."""

    at: float = field(default_factory=time.time)


class StageKind(str, Enum):
    """What a job does in a stage, as far as others act on it."""

    WORKING = "working"
    TRAINING = "training"  # a run makes steps
    PAUSED = "paused"  # a run waits until the user resumes it
    MEASURING = "measuring"  # a run measures recall


@dataclass(frozen=True, kw_only=True)
class Stage(Event):
    """Current stage of the job; `share` is the finished part of it, if known."""

    text: str
    share: float | None = None
    kind: StageKind = StageKind.WORKING


@dataclass(frozen=True, kw_only=True)
class DownloadProgress(Event):
    """Progress of a download, in bytes."""

    done: int
    total: int
    speed: float  # bytes per second in the last seconds; 0 if none arrived

    @property
    def share(self) -> float:
        return self.done / self.total if self.total else 1.0


@dataclass(frozen=True, kw_only=True)
class RunPlanned(Event):
    """The run plan, before the first step."""

    name: str
    model: str
    steps: int
    steps_per_epoch: int
    first_step: int
    rates: tuple[float, ...]
    settings: Mapping[str, object]
    rate_factor: float = 1.0  # by which the user has changed the rates
    # Steps, evaluations, recall, samples and checkpoints of a resumed run before `first_step`.
    earlier: tuple[Event, ...] = ()
    disk: str = ""  # disk space the run will use and the free space, in words
    # Steps between two; also before the first step and at the end. 0 means never.
    evaluate_every: int = 0
    answer_every: int = 0
    recall_every: int = 0


# With slots, because a long run keeps tens of thousands of steps.
@dataclass(frozen=True, kw_only=True, slots=True)
class Step(Event):
    """A finished step, one change of the weights: in the log, in training_graph.json and on the curve."""

    step: int
    steps: int = 0  # last step of the plan; 0 for a step read from a file
    epoch: float
    loss: float
    smoothed: float
    learning_rate: float
    gradient_norm: float | None
    tokens: int
    seconds: float
    # Seconds since the previous step outside of steps: evaluation, samples, saving; without pauses.
    extra_time: float = 0.0
    by_source: Mapping[str, float] = field(default_factory=dict)  # of each dataset, if there are several
    phase: str = ""  # batching phase of the step, if the order of the examples has several
    examples: int = 0  # 0 if it was read from a file without this figure
    # Where replies are compared, means over them: the margin, the share that is preferred as in the data, the log
    # probability of a token of chosen and of rejected replies, and how far the chosen ones are from the base.
    preferences: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, kw_only=True)
class MachineUse(Event):
    """Use of the machine by the run; None if a value cannot be read."""

    cards: int  # 0 without a GPU: then `peak` and `total` are of main memory
    peak: int  # most bytes in use since the run began, including the model
    total: int = 0  # bytes of memory
    busy: int | None = None  # percent of the time
    celsius: int | None = None  # of the hottest GPU
    watts: int | None = None  # of all GPUs together


def peak_memory_of(events: Iterable[Event]) -> int:
    """Peak memory of a run by its MachineUse events; 0 if there are none."""
    return max((event.peak for event in events if isinstance(event, MachineUse)), default=0)


@dataclass(frozen=True, kw_only=True)
class EvaluationDone(Event):
    """An evaluation on the validation split after a step."""

    step: int
    epoch: float
    why: Trigger
    loss: float
    perplexity: float
    accuracy: float
    tokens: int
    seconds: float
    by_source: Mapping[str, float] = field(default_factory=dict)  # of each dataset, if there are several
    # By how much the loss of a continuation falls when the model may read what comes before it; None if there are
    # no continuations.
    context_gain: float | None = None
    validation_key: str = ""  # fingerprint of the validation split
    pairs: int = 0  # if replies were compared: then `accuracy` is the share that is preferred as in the data


@dataclass(frozen=True)
class PhaseFigures:
    """Figures of one phase of hybrid batching; `before` and `after` are evaluations at its start and its end."""

    name: str
    first_step: int
    last_step: int
    examples: int  # 0 if the record is without this figure
    mean_loss: float
    smoothed: float  # after the last step
    before: EvaluationDone | None = None
    after: EvaluationDone | None = None

    @property
    def steps(self) -> int:
        return self.last_step - self.first_step + 1

    def as_log(self) -> dict[str, Any]:
        """Return plain values for training_log.json."""
        values = {key: value for key, value in vars(self).items() if key not in ("before", "after")}
        values["steps"] = self.steps
        for place, done in (("before", self.before), ("after", self.after)):
            keys = ("step", "loss", "perplexity", "context_gain")
            values[place] = {key: getattr(done, key) for key in keys} if done else None
        return values


@dataclass(frozen=True, kw_only=True)
class PhasesMeasured(Event):
    """The figures of all phases, at the end of a run."""

    phases: tuple[PhaseFigures, ...]


def measure_phases(steps: Sequence[Step], evaluations: Sequence[EvaluationDone]) -> tuple[PhaseFigures, ...]:
    """Measure each phase of a run; empty if its order has only one."""
    if not steps or not steps[-1].phase:
        return ()
    # Losses on another split, from before a resumed run got other data, do not compare.
    key = evaluations[-1].validation_key if evaluations else ""
    comparable = [evaluation for evaluation in evaluations if evaluation.validation_key == key]
    phases: list[PhaseFigures] = []
    for name, members in groupby(steps, key=lambda step: step.phase):
        if not name:
            continue
        of_phase = list(members)
        first, last = of_phase[0].step, of_phase[-1].step
        examples, loss = sum(step.examples for step in of_phase), fmean(step.loss for step in of_phase)
        before = next((e for e in reversed(comparable) if e.step < first), None)
        after = next((e for e in reversed(comparable) if first <= e.step <= last), None)
        phases.append(PhaseFigures(name, first, last, examples, loss, of_phase[-1].smoothed, before, after))
    return tuple(phases)


@dataclass(frozen=True, kw_only=True)
class PlanChanged(Event):
    """The plan changed after this step: the new last step and the learning rate of every step, also past ones."""

    step: int
    steps: int
    rates: tuple[float, ...]
    why: str
    settings: Mapping[str, object] = field(default_factory=dict)  # the new ones, where epochs were added


@dataclass(frozen=True, kw_only=True)
class LiveSettingsChanged(Event):
    """Live settings that changed after this step: their keys, each with the old and the new value."""

    step: int
    changes: Mapping[str, tuple[object, object]]


def settings_in_force(events: Iterable[Event]) -> dict[str, object]:
    """The settings of a run by its events: as planned, then as the user changed them; empty before the plan."""
    settings: dict[str, object] = {}
    for event in events:
        if isinstance(event, RunPlanned):
            settings = {**event.settings}
        elif isinstance(event, PlanChanged):
            settings |= event.settings
        elif isinstance(event, LiveSettingsChanged):
            settings |= {key: new for key, (_, new) in event.changes.items()}
    return settings


@dataclass(frozen=True, kw_only=True)
class RequestsChanged(Event):
    """The names of the requests that the run has received and not carried out yet."""

    pending: tuple[str, ...]


@dataclass(frozen=True, kw_only=True)
class CheckpointSaved(Event):
    """A checkpoint was saved."""

    step: int
    folder: Path
    reason: str


@dataclass(frozen=True, kw_only=True)
class Note(Event):
    """Information that needs no action."""

    text: str


@dataclass(frozen=True, kw_only=True)
class StartedFromQueue(Note):
    """The run was started from the queue, not by the Start button."""


@dataclass(frozen=True, kw_only=True)
class Advice(Event):
    """Information that suggests an action."""

    text: str


@dataclass(frozen=True, kw_only=True)
class LibraryMessage(Event):
    """Message of a library during the job, for the console and not for the page."""

    source: str
    text: str


@dataclass(frozen=True, kw_only=True)
class Answer(Event):
    """A piece of an answer; `side` says whether it is generated with or without the LoRA."""

    side: Literal["with", "without"]
    piece: str


@dataclass(frozen=True, kw_only=True)
class SampleGenerated(Event):
    """A sample: the answer to a prompt after a step, with the LoRA and without it."""

    step: int
    prompt: str
    text: str
    without: str


@dataclass(frozen=True, kw_only=True)
class ProbeDone(Event):
    """Result of a probe, one step on the longest batch; a value of 0 is unknown."""

    batch_size: int
    tokens: int
    seconds: float  # of a whole step, with accumulation
    steps: int
    run_seconds: float
    peak: int  # peak bytes of a run, above the loaded model
    expected: int  # Check's estimate of `peak`
    free: int  # free bytes, above the loaded model
    largest_batch: int = 0
    too_large: int = 0  # batch size that did not fit; the other values are for a smaller one
    fitting: Mapping[str, object] = field(default_factory=dict)  # settings that make the run fit into memory
    evaluations: int = 0  # number in the run
    evaluation_seconds: float = 0.0  # of one, estimated from the time of a step
    answers: int = 0  # number of answers to sample prompts in the run
    answer_seconds: float = 0.0  # of one at most, estimated from its beginning

    @property
    def fits(self) -> bool:
        """Whether the run fits into the free memory without splitting a batch."""
        return not (self.too_large or (self.free and self.peak > self.free))


@dataclass(frozen=True)
class RecallFigures:
    """How a set of passages was continued; a token counts if it and all tokens before it are right."""

    passages: int
    recall: float  # the share of a passage that is continued word for word, on average
    verbatim: int  # passages that are continued word for word to their end
    longest: int  # tokens of the longest continuation that is right
    loss: float


@dataclass(frozen=True)
class PartRecall:
    """Recall of one chapter, or of the rows of one file."""

    name: str
    passages: int
    recall: float
    loss: float


@dataclass(frozen=True, kw_only=True)
class RecallMeasured(Event):
    """Recall of training passages after a step, and of `control` passages that the model has never seen."""

    step: int
    epoch: float
    why: Trigger
    learned: RecallFigures  # of no passages where preferences are learned: then only `general_loss` is measured
    control: RecallFigures | None
    general_loss: float | None = None  # of prose beside the data: it rises if the model forgets
    strip: tuple[float, ...] = ()  # the recall of each passage, in the order of the data
    parts: tuple[PartRecall, ...] = ()
    seconds: float = 0.0

    @property
    def gain(self) -> float:
        """By how much more of the training passages is recalled than of those that the model has never seen."""
        return self.learned.recall - (self.control.recall if self.control else 0.0)

    def as_log(self) -> dict[str, Any]:
        """Return plain values for training_log.json, the same for equal runs."""
        return {key: value for key, value in asdict(self).items() if key not in ("at", "seconds")}


@dataclass(frozen=True)
class TextLoss:
    """Mean loss of a general text, without and with the LoRA."""

    text: str
    tokens: int
    base: float
    lora: float


@dataclass(frozen=True)
class Count:
    """In how many of `of` replies something holds, without and with the LoRA."""

    base: int
    lora: int
    of: int


@dataclass(frozen=True)
class Habits:
    """What the model does in replies to messages that have nothing to do with the training data."""

    stops: Count
    follows: Count
    name_base: str
    name_lora: str


@dataclass(frozen=True)
class Copying:
    """Share of the 8-word runs in freely written text that are in the training data, too."""

    base: float
    lora: float
    runs: int


@dataclass(frozen=True)
class Phrase:
    """Uses per 1,000 words of a phrase that the model overuses, or of all of them; beside those of the author."""

    text: str  # empty for all of them
    author: float
    base: float
    lora: float


@dataclass(frozen=True, kw_only=True)
class EvidenceMeasured(Event):
    """What a LoRA kept, copies and answers; None for what this model or these data don't allow."""

    general: tuple[TextLoss, ...]
    habits: Habits | None = None
    copying: Copying | None = None
    overused: tuple[Phrase, ...] = ()  # all of them, then the worst
    answers: Count | None = None  # questions of the data with a short answer, answered right without any context
    seconds: float = 0.0

    def as_log(self) -> dict[str, Any]:
        """Plain values, for evidence.json."""
        return {key: value for key, value in asdict(self).items() if value is not None}


@dataclass(frozen=True, kw_only=True)
class NotesTaken(Event):
    """How many notes were written, and how many of them were dropped for which reason, with examples."""

    rows: int
    kept: int
    dropped: Mapping[str, int]
    examples: Mapping[str, Sequence[str]]
    tokens: int


@dataclass(frozen=True)
class SectionScore:
    """How many questions of an exam about a section were answered right."""

    name: str
    right: int
    asked: int


@dataclass(frozen=True, kw_only=True)
class ExamAsked(Event):
    """An exam was asked after a step: short answers, without the text and without any help."""

    step: int
    sections: tuple[SectionScore, ...]
    seconds: float = 0.0

    @property
    def right(self) -> int:
        return sum(section.right for section in self.sections)

    @property
    def asked(self) -> int:
        return sum(section.asked for section in self.sections)


@dataclass(frozen=True, kw_only=True)
class TokenScores:
    """Score of some tokens: their mean loss and the share that the model predicts right."""

    tokens: int
    loss: float
    right: float

    @property
    def perplexity(self) -> float:
        return perplexity(self.loss)


@dataclass(frozen=True, kw_only=True)
class Segment(TokenScores):
    """Score of one of many equal segments of a dataset; `begins` is the beginning of its text."""

    begins: str


@dataclass(frozen=True, kw_only=True)
class RowScores(TokenScores):
    """Score of a row: its place, the text before the scored part, and the beginning of the scored part."""

    place: str
    read: str
    begins: str


@dataclass(frozen=True, kw_only=True)
class PerplexityMeasured(Event):
    """Perplexity of a dataset, a row of the evaluations table."""

    model: str
    lora: str  # '-' for the model without a LoRA
    dataset: str
    perplexity: float
    loss: float
    tokens: int
    stride: int  # 0 for datasets of rows
    max_length: int
    seconds: float
    right: float  # the share of tokens that the model predicts right
    stretches: tuple[Segment, ...] = ()  # the scores along the data
    # The highest perplexity first: all rows or, if there are very many, the same number from each end.
    rows: tuple[RowScores, ...] = ()

    @property
    def least_known(self) -> tuple[RowScores, ...]:
        """A few rows with the highest perplexity, worst first; none is also in `best_known`."""
        return self.rows[: min(MAX_SHOWN_ROWS, len(self.rows) // 2)]

    @property
    def best_known(self) -> tuple[RowScores, ...]:
        """A few rows with the lowest perplexity, best first."""
        return self.rows[::-1][: len(self.least_known)]


@dataclass(frozen=True, kw_only=True)
class JobEnded(Event):
    """Last event of every job; `details` has the traceback of an unexpected error."""

    outcome: Outcome
    text: str
    folder: Path | None = None
    details: str = ""
    verdict: str = ""  # in a few words, such as 'began to memorize'; `text` has all of it
    remedies: tuple[Remedy, ...] = ()  # that may help after a failure, the most helpful first
