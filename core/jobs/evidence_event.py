"""What a run can prove: what the LoRA kept of the base model and what it copies, as an event and in words."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from ...train_utils import format_count
from .events import Event

WELL_KEPT, PARTLY_KEPT = 0.1, 0.5
"""Rises of the loss on general text, in nats per token, up to which it was kept well, and partly."""


@dataclass(frozen=True)
class TextLoss:
    """Mean loss of a general text, without and with the LoRA."""

    text: str
    tokens: int
    base: float
    lora: float

    @property
    def rise(self) -> float:
        return self.lora - self.base


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

    @property
    def keeps_name(self) -> bool:
        return self.name_base == self.name_lora


@dataclass(frozen=True)
class Copying:
    """Share of the 8-word runs in freely written text that stand in the training data."""

    base: float
    lora: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class EvidenceMeasured(Event):
    """What a LoRA kept, copies and answers; None for what this model or these data don't allow."""

    general: tuple[TextLoss, ...]
    habits: Habits | None = None
    copying: Copying | None = None
    answers: Count | None = None
    """Questions of the training data with a short answer that are answered right without any context."""
    seconds: float = 0.0

    def as_log(self) -> dict[str, Any]:
        """Plain values, for evidence.json."""
        values: Mapping[str, Any] = asdict(self)
        return {key: value for key, value in values.items() if value is not None}


def kept_words(general: tuple[TextLoss, ...]) -> str:
    """'kept the general language well', by the largest rise of the loss."""
    rise = max((text.rise for text in general), default=0.0)
    if rise <= WELL_KEPT:
        return "kept general language well"
    return "kept general language in part" if rise <= PARTLY_KEPT else "forgot much of general language"


def evidence_lines(event: EvidenceMeasured) -> Iterator[str]:
    """One sentence for each kind of evidence."""
    for text in event.general:
        factor = math.exp(min(text.rise, 50.0))
        yield (
            f"Loss on general {text.text} ({text.tokens:,} tokens): {text.base:.4f} without the LoRA, "
            f"{text.lora:.4f} with it ({text.rise:+.4f}, perplexity x {factor:.2f})."
        )
    if event.habits is not None:
        yield from _habit_lines(event.habits)
    if event.copying is not None:
        copying = event.copying
        yield (
            f"Copied: {copying.lora:.1%} of {format_count(copying.runs, 'run')} of 8 words in freely written text "
            f"stand in the training data ({copying.base:.1%} without the LoRA)."
        )
    if event.answers is not None:
        yield _count_line("Questions of the training data answered right", event.answers)


def _habit_lines(habits: Habits) -> Iterator[str]:
    yield _count_line("Replies that end by themselves", habits.stops)
    yield _count_line("Short instructions followed", habits.follows)
    if habits.keeps_name:
        yield "Asked for its name, it replies as before."
    else:
        yield f"Asked for its name, it replies {habits.name_lora!r}, and without the LoRA {habits.name_base!r}."


def _count_line(what: str, count: Count) -> str:
    return f"{what}: {count.lora} of {count.of} ({count.base} without the LoRA)."
