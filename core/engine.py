"""The seam to whoever works on the model; without a torch type in it, and torch not loaded by it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol, TypeVar

from .host import Host
from .jobs import Ended, Job

Settings = TypeVar("Settings", contravariant=True)
Report = TypeVar("Report", covariant=True)


@dataclass(frozen=True)
class Showing:
    """Which examples are to be shown: so many from a number on (the first is 1), forwards or back, and only those
    that hold some words. A first of 0: the first ones of each data set in turn."""

    count: int = 0
    first: int = 0
    holding: str = ""
    back: bool = False


NOTHING_SHOWN = Showing()


@dataclass(frozen=True)
class Question:
    """What the model is asked to go on with, and how."""

    prompt: str
    lora: str = ""
    strength: float = 1.0
    both: bool = True
    as_chat: bool = False
    max_tokens: int = 120
    temperature: float = 0.7
    seed: int = 42


@dataclass(frozen=True)
class PerplexityOf:
    """Of which data (a path, or a data set's name), without a LoRA and with each of some (a name or
    NAME/checkpoint-40; a Path is the command line's). A text goes by in windows, a row is one: a length of 0 is
    what the model takes, at most 2048; a stride of 0 half of that, and rows have none."""

    data: str
    loras: tuple[str | Path, ...] = ()
    without: bool = True
    stride: int = 0
    max_length: int = 0
    comment: str = ""


@dataclass(frozen=True)
class Merge:
    """Which LoRA (a name or NAME/checkpoint-40; a Path is the command line's) is baked into the model, and the
    folder of the result."""

    lora: str | Path
    out: str


@dataclass(frozen=True)
class GgufLora:
    """Which LoRA (a name or NAME/checkpoint-40; a Path is the command line's) becomes a GGUF file, and where;
    empty: in its folder.

    `model` is the one that it was made on, or the GGUF file that it is for; empty: the one that the LoRA names.
    """

    lora: str | Path
    out: str = ""
    model: str = ""


class Engine(Protocol[Settings, Report]):
    """Trains on and answers with the model that a host lends, and gives it back as it was."""

    def check(self, settings: Settings, host: Host, *, show: Showing = NOTHING_SHOWN) -> Report:
        """What a run with these settings would learn from, with some of its examples; touches no weights."""
        ...

    def foresee(self, settings: Settings, host: Host, *, resume: str = "") -> Report:
        """Check's report, and with it what only the start of a run would say: that its name is taken."""
        ...

    def train(self, settings: Settings, host: Host, job: Job, *, resume: str = "") -> Ended:
        """One run; `resume` names a checkpoint to go on from, or is 'newest'."""
        ...

    def probe(self, settings: Settings, host: Host, job: Job) -> Ended:
        """One step on the longest batch, as a Probed event: what a run would take. No weight changes."""
        ...

    def layers(self, host: Host) -> Mapping[str, int]:
        """The names of the model's layers that a LoRA can sit on, and how often each occurs; loads no weights."""
        ...

    def answer(self, question: Question, host: Host, job: Job) -> Ended:
        """An answer as Answer events: with the LoRA and, if wanted, without."""
        ...

    def perplexity(self, asked: PerplexityOf, settings: Settings, host: Host, job: Job) -> Ended:
        """PerplexityFound events, each a row in the host's table of evaluations; rows are read by the settings."""
        ...

    def merge(self, asked: Merge, host: Host, job: Job) -> Ended:
        """A full model on disk; the one in memory stays as it is."""
        ...

    def gguf(self, asked: GgufLora, host: Host) -> Path:
        """The LoRA as a file for llama.cpp; touches no weights of the model, so it needs no job."""
        ...

    def put_on(self, name: str, strength: float, host: Host, job: Job) -> Ended: ...

    def take_off(self, host: Host, job: Job) -> Ended: ...
