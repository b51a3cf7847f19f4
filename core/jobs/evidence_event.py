"""What a run can prove: what the LoRA kept of the base model and what it copies, as an event and in words."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import asdict, dataclass
from typing import Any

from .events import Event
from .recall_event import FORGOT_LITTLE, FORGOT_MUCH, RecallMeasured


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


@dataclass(frozen=True)
class Copying:
    """Share of the 8-word runs in freely written text that are in the training data, too."""

    base: float
    lora: float
    runs: int


@dataclass(frozen=True, kw_only=True)
class EvidenceMeasured(Event):
    """What a LoRA kept, copies and answers; None for what this model or these data don't allow."""

    general: tuple[TextLoss, ...]
    habits: Habits | None = None
    copying: Copying | None = None
    # Questions of the training data with a short answer that are answered right without any context.
    answers: Count | None = None
    seconds: float = 0.0

    def as_log(self) -> dict[str, Any]:
        """Plain values, for evidence.json."""
        values: Mapping[str, Any] = asdict(self)
        return {key: value for key, value in values.items() if value is not None}


def evidence_verdict(event: EvidenceMeasured, recall: RecallMeasured | None) -> str:
    """One sentence: what the model learned with the LoRA, kept and copies, with the figures."""
    parts = []
    if recall is not None:
        unseen = f" ({recall.control.recall:.0%} of unseen text)" if recall.control else ""
        parts.append(f"recalls {recall.learned.recall:.0%} of the training data word for word{unseen}")
    if event.answers is not None:
        parts.append(f"correctly answers {event.answers.lora} of {event.answers.of} questions about the data")
    rise = max((text.rise for text in event.general), default=0.0)
    parts.append(f"{_forgot_words(rise)} (loss on general text changed by {rise:+.2f})")
    if event.copying is not None:
        parts.append(f"copies {event.copying.lora:.0%} of its text from the training data")
    if event.habits is not None and event.habits.stops.lora < event.habits.stops.base:
        stops = event.habits.stops
        parts.append(f"ends {stops.lora} of {stops.of} replies by itself ({stops.base} without the LoRA)")
    words = f"{', '.join(parts[:-1])} and {parts[-1]}" if len(parts) > 1 else parts[0]
    return f"With the LoRA, the model {words}."


def _forgot_words(rise: float) -> str:
    if rise <= FORGOT_LITTLE:
        return "has forgotten almost nothing"
    return "has forgotten a little" if rise <= FORGOT_MUCH else "has forgotten a lot"


def evidence_table(event: EvidenceMeasured) -> list[tuple[str, str, str]]:
    """The figures as a table of texts, the header first."""
    return [("", "Without the LoRA", "With the LoRA"), *_rows(event)]


def _rows(event: EvidenceMeasured) -> Iterator[tuple[str, str, str]]:
    for text in event.general:
        yield f"Loss on general {text.text} ({text.tokens:,} tokens)", f"{text.base:.4f}", f"{text.lora:.4f}"
    if event.habits is not None:
        yield _count_row("Replies that end by themselves", event.habits.stops)
        yield _count_row("Short instructions followed", event.habits.follows)
        yield "Reply to 'What is your name?'", event.habits.name_base, event.habits.name_lora
    if event.copying is not None:
        copying = event.copying
        yield "8-word sequences copied from the training data", f"{copying.base:.1%}", f"{copying.lora:.1%}"
    if event.answers is not None:
        yield _count_row("Questions about the training data answered correctly", event.answers)


def _count_row(what: str, count: Count) -> tuple[str, str, str]:
    return what, f"{count.base} of {count.of}", f"{count.lora} of {count.of}"
