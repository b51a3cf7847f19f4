"""The Engine protocol: everything that works on a model. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from .host import Host
from .jobs import Job, JobEnded

# A name, or NAME/checkpoint-40; a Path comes from the command line.
LoraName: TypeAlias = str | Path
RECALL_PASSAGES = 256
PAIR_TOKENS = 20_000  # that the model writes for a table of pairs
Settings = TypeVar("Settings", contravariant=True)
Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class PreviewQuery:
    """Which training examples a preview shows."""

    count: int = 0
    first: int = 0  # number of the first one, counted from 1; 0: the first examples of each dataset in turn
    containing: str = ""  # only those with these words
    backward: bool = False  # from the first one towards the beginning
    with_dropped: bool = False  # also preferences that the user dropped


NO_PREVIEW = PreviewQuery()


@dataclass(frozen=True)
class AnswerRequest:
    """A prompt for the model, with the LoRA to use and the generation settings."""

    prompt: str
    lora: str = ""
    strength: float = 1.0
    as_chat: bool = False
    max_tokens: int = 120
    temperature: float = 0.7
    seed: int = 42


@dataclass(frozen=True)
class PerplexityRequest:
    """Request to measure the perplexity of a dataset: a text in sliding windows, a row as one window."""

    data: str  # a path, or the name of a dataset
    loras: tuple[LoraName, ...] = ()
    include_base: bool = True
    stride: int = 0  # 0: half of `max_length`; rows have none
    max_length: int = 0  # 0: the model's context, at most 2048 tokens
    comment: str = ""


@dataclass(frozen=True)
class MergeRequest:
    """Request to merge a LoRA into the model, and the folder of the result."""

    lora: LoraName
    out: str
    shard_size: str = ""  # empty: the default of the setting with this name


@dataclass(frozen=True)
class GgufRequest:
    """Request to write a LoRA as a GGUF file."""

    lora: LoraName
    out: str = ""  # empty: a file in the LoRA's folder
    model: str = ""  # the base model, or the GGUF file that the LoRA is for; empty: the one that the LoRA names


EXAM_QUESTIONS = 4  # of an exam about each section
NOTE_KINDS = ("questions", "rewordings", "summaries", "links", "briefs")
"""The kinds of notes that a model takes on a text."""


@dataclass(frozen=True)
class StudyRequest:
    """Request to take notes on a dataset, or to write an exam, or to resume that; 0 sets no limit."""

    data: str  # a path
    out: Path
    kinds: tuple[str, ...]
    rounds: int = 0
    minutes: float = 0.0
    tokens: int = 0
    seed: int = 42
    per_section: int = 0  # questions for an exam on each section, instead of notes
    exams: tuple[Path, ...] = ()  # no note is a question of these
    failed: LoraName = ""  # only sections of which this LoRA had less than `target` right in its last exam
    target: float = 0.8
    rows: Mapping[str, object] = field(default_factory=dict)  # settings that say how rows are read


@dataclass(frozen=True)
class MapRequest:
    """Request to draw the map of a dataset into a new file."""

    data: str  # a path
    out: Path
    rows: Mapping[str, object] = field(default_factory=dict)  # settings that say how rows are read


class Engine(Protocol[Settings, Report]):
    """Trains and runs the model that a host lends, and leaves it as it was."""

    def check(self, settings: Settings, host: Host, *, show: PreviewQuery = NO_PREVIEW) -> Report:
        """Report what a run with these settings would learn, with a preview of its examples; loads no weights."""

    def check_start(
        self,
        settings: Settings,
        host: Host,
        *,
        resume: str = "",
        show: PreviewQuery = NO_PREVIEW,
        problems: Sequence[str] = (),
    ) -> Report:
        """Add the problems of a start to the report of `check`: a name in use, and those of values left out."""

    def train(self, settings: Settings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
        """Train one run; `resume` is the name of a checkpoint to resume from, or 'newest'."""

    def probe(self, settings: Settings, host: Host, job: Job) -> JobEnded:
        """Try one step on the longest batch; report time and memory as a Probed event. Changes no weights."""

    def layers(self, host: Host) -> Mapping[str, int]:
        """Count the model's layers that can hold a LoRA, by name; loads no weights."""

    def answer(self, question: AnswerRequest, host: Host, job: Job) -> JobEnded:
        """Generate an answer as Answer events, without a LoRA and, if one is named, also with it."""

    def perplexity(self, asked: PerplexityRequest, settings: Settings, host: Host, job: Job) -> JobEnded:
        """Measure perplexity, and add it to the host's table; the settings say how rows are read."""

    def recall(self, lora: LoraName, host: Host, job: Job, *, passages: int = RECALL_PASSAGES) -> JobEnded:
        """Measure recall without the LoRA and with it as RecallMeasured events, and write it into its folder."""

    def evidence(self, lora: LoraName, host: Host, job: Job) -> JobEnded:
        """Measure what the LoRA kept of the model, copies and answers from memory; write it into its folder."""

    def write_pairs(self, data: str, out: str, tokens: int, host: Host, job: Job) -> JobEnded:
        """Write a table of preferences for a text's author against what the model writes in its place."""

    def study(self, asked: StudyRequest, host: Host, job: Job) -> JobEnded:
        """Take notes on a dataset without a LoRA, into a file, and report them as a NotesTaken event."""

    def exam(self, exam: str, lora: LoraName, host: Host, job: Job) -> JobEnded:
        """Ask the model an exam without a LoRA and with one (empty: only without) as ExamAsked events."""

    def draw_map(self, asked: MapRequest, host: Host, job: Job) -> JobEnded:
        """Write the rows of a dataset in clusters, by the model's hidden states without a LoRA, into a file."""

    def merge(self, asked: MergeRequest, host: Host, job: Job) -> JobEnded:
        """Write the merged model to disk; the model in memory stays as it is."""

    def export_gguf(self, asked: GgufRequest, host: Host) -> Path:
        """Write the LoRA as a file for llama.cpp; needs no job because it does not touch the model's weights."""

    def attach_lora(self, name: str, strength: float, host: Host, job: Job) -> JobEnded: ...

    def detach_lora(self, host: Host, job: Job) -> JobEnded: ...

    def close(self) -> None:
        """End the worker that holds a model, if there is one; it is started again when it is needed."""
