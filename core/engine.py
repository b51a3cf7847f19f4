"""The Engine protocol: everything that works on a model. Importing it does not import torch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeAlias, TypeVar

from .host import Host
from .jobs import Job, JobEnded

# A name, or NAME/checkpoint-40; a Path comes from the command line.
LoraName: TypeAlias = str | Path
Settings = TypeVar("Settings", contravariant=True)
Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class PreviewQuery:
    """Which training examples a preview shows.

    `count` examples from number `first` (counted from 1) on, or `backward` from there; only those with the words
    in `containing`. With `first` 0: the first examples of each dataset in turn.
    """

    count: int = 0
    first: int = 0
    containing: str = ""
    backward: bool = False


NO_PREVIEW = PreviewQuery()


@dataclass(frozen=True)
class AnswerRequest:
    """A prompt for the model, with the LoRA to use and the generation settings."""

    prompt: str
    lora: str = ""
    strength: float = 1.0
    include_base: bool = True
    as_chat: bool = False
    max_tokens: int = 120
    temperature: float = 0.7
    seed: int = 42


@dataclass(frozen=True)
class PerplexityRequest:
    """Request to measure the perplexity of a dataset, without a LoRA and with each of `loras`.

    `data` is a path or the name of a dataset. A text is scored in sliding windows, a row as one window. A
    `max_length` of 0 means the model's context, at most 2048 tokens; a `stride` of 0 means half of that. Rows have
    no stride.
    """

    data: str
    loras: tuple[LoraName, ...] = ()
    include_base: bool = True
    stride: int = 0
    max_length: int = 0
    comment: str = ""


@dataclass(frozen=True)
class RecallRequest:
    """Request to measure how much of its training data a LoRA reproduces word for word."""

    lora: LoraName
    passages: int = 256


@dataclass(frozen=True)
class EvidenceRequest:
    """Request to measure what a LoRA kept of the base model, what it copies and what it answers from memory."""

    lora: LoraName


@dataclass(frozen=True)
class MergeRequest:
    """Request to merge a LoRA into the model, and the folder of the result."""

    lora: LoraName
    out: str
    shard_size: str = ""  # empty: the default of the setting with this name


@dataclass(frozen=True)
class GgufRequest:
    """Request to write a LoRA as a GGUF file.

    An empty `out` is a file in the LoRA's folder. `model` is the base model, or the GGUF file that the LoRA is
    for; if empty, the base model that the LoRA names.
    """

    lora: LoraName
    out: str = ""
    model: str = ""


class Engine(Protocol[Settings, Report]):
    """Trains and runs the model that a host lends, and leaves it as it was."""

    def check(self, settings: Settings, host: Host, *, show: PreviewQuery = NO_PREVIEW) -> Report:
        """Report what a run with these settings would learn, with a preview of its examples; loads no weights."""
        ...

    def check_start(
        self,
        settings: Settings,
        host: Host,
        *,
        resume: str = "",
        show: PreviewQuery = NO_PREVIEW,
        problems: Sequence[str] = (),
    ) -> Report:
        """Return the report of `check` with the problems of a start added, such as a name that is in use.

        `problems` are those of values that are the defaults in `settings`; they hide no problem of the data.
        """
        ...

    def train(self, settings: Settings, host: Host, job: Job, *, resume: str = "") -> JobEnded:
        """Train one run; `resume` is the name of a checkpoint to resume from, or 'newest'."""
        ...

    def probe(self, settings: Settings, host: Host, job: Job) -> JobEnded:
        """Try one step on the longest batch; report time and memory as a Probed event. Changes no weights."""
        ...

    def layers(self, host: Host) -> Mapping[str, int]:
        """Count the model's layers that can hold a LoRA, by name; loads no weights."""
        ...

    def answer(self, question: AnswerRequest, host: Host, job: Job) -> JobEnded:
        """Generate an answer as Answer events, with the LoRA and, if `include_base` is set, also without it."""
        ...

    def perplexity(self, asked: PerplexityRequest, settings: Settings, host: Host, job: Job) -> JobEnded:
        """Measure perplexity as PerplexityFound events and add each to the host's table of evaluations.

        The settings say how rows are read.
        """
        ...

    def recall(self, asked: RecallRequest, host: Host, job: Job) -> JobEnded:
        """Measure recall without the LoRA and with it as RecallMeasured events, and write it into its folder."""
        ...

    def evidence(self, asked: EvidenceRequest, host: Host, job: Job) -> JobEnded:
        """Measure without and with the LoRA as an EvidenceMeasured event, and write it into the LoRA's folder."""
        ...

    def merge(self, asked: MergeRequest, host: Host, job: Job) -> JobEnded:
        """Write the merged model to disk; the model in memory stays as it is."""
        ...

    def export_gguf(self, asked: GgufRequest, host: Host) -> Path:
        """Write the LoRA as a file for llama.cpp; needs no job because it does not touch the model's weights."""
        ...

    def attach_lora(self, name: str, strength: float, host: Host, job: Job) -> JobEnded: ...

    def detach_lora(self, host: Host, job: Job) -> JobEnded: ...
