"""Recall: how much of the training data the model reproduces word for word, as an event and in words."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ...train_utils import format_count, known_columns
from .events import Event, Trigger

# Rises of the loss on general text, in nats per token: up to the first, next to nothing was forgotten.
FORGOT_LITTLE, FORGOT_MUCH = 0.02, 0.2


@dataclass(frozen=True)
class RecallFigures:
    """How a set of passages was continued; a token counts if it and all tokens before it are right."""

    passages: int
    # The share of a passage that is continued word for word, on average.
    recall: float
    # The number of passages that are continued word for word to their end.
    verbatim: int
    # Tokens of the longest continuation that is right.
    longest: int
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
    learned: RecallFigures
    control: RecallFigures | None
    # The loss of general prose that has nothing to do with the data: it rises if the model forgets.
    general_loss: float | None = None
    # The recall of each passage, in the order of the data.
    strip: tuple[float, ...] = ()
    parts: tuple[PartRecall, ...] = ()
    seconds: float = 0.0

    @property
    def gain(self) -> float:
        """By how much more of the training passages is recalled than of those that the model has never seen."""
        return self.learned.recall - (self.control.recall if self.control else 0.0)

    def as_log(self) -> dict[str, Any]:
        """Return plain values for training_log.json, the same for equal runs."""
        return {key: value for key, value in asdict(self).items() if key not in ("at", "seconds")}


RECALL_COLUMNS = (
    "Step",
    "Recall",
    "Whole passages",
    "Longest match (tokens)",
    "Loss",
    "Recall of unseen text",
    "Loss on unseen text",
    "Loss on general text",
)


def recall_table(measured: Sequence[RecallMeasured]) -> list[tuple[str, ...]]:
    """Measurements as a table of texts, the header first; columns without a value are omitted."""
    return known_columns([RECALL_COLUMNS, *map(_cells, measured)]) if measured else []


def _cells(event: RecallMeasured) -> tuple[str, ...]:
    figures, control = event.learned, event.control
    unseen = (f"{control.recall:.1%}", f"{control.loss:.4f}") if control else ("", "")
    whole = f"{figures.verbatim} of {figures.passages}"
    general = "" if event.general_loss is None else f"{event.general_loss:.4f}"
    learned = (f"{figures.recall:.1%}", whole, str(figures.longest), f"{figures.loss:.4f}")
    return (str(event.step), *learned, *unseen, general)


def part_table(event: RecallMeasured) -> list[tuple[str, ...]]:
    """Recall by chapter or file as a table of texts, the header first; empty if the data have only one."""
    rows = [(part.name, str(part.passages), f"{part.recall:.1%}", f"{part.loss:.4f}") for part in event.parts]
    return [("Part", "Passages", "Recall", "Loss"), *rows] if rows else []


def recall_text(event: RecallMeasured) -> str:
    """'on average, the model reproduces 81% of a training passage word for word (9 of 16 passages to the end)'."""
    figures, control = event.learned, event.control
    unseen = f"; for passages that it has not seen, {control.recall:.0%}" if control else ""
    return (
        f"on average, the model reproduces {figures.recall:.0%} of a training passage word for word "
        f"({figures.verbatim} of {format_count(figures.passages, 'passage')} to the end){unseen}"
    )
