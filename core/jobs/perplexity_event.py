"""The event of a measured perplexity, with the scores along a text or of each row."""

from __future__ import annotations

from dataclasses import dataclass

from ...train_utils import perplexity
from .events import Event

# Number of rows shown from each end of the ranking by perplexity.
MAX_SHOWN_ROWS = 5


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
    """Perplexity of a dataset, a row of the evaluations table; `lora` is '-' for the model without a LoRA.

    `right` is the share of tokens that the model predicts right; `stretches` are the scores along the data.
    Datasets of rows have a `stride` of 0. `rows` are sorted, the highest perplexity first: all rows or, if there
    are very many, the same number from each end.
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
    stretches: tuple[Segment, ...] = ()
    rows: tuple[RowScores, ...] = ()

    @property
    def least_known(self) -> tuple[RowScores, ...]:
        """A few rows with the highest perplexity, worst first; none is also in `best_known`."""
        return self.rows[: self._few]

    @property
    def best_known(self) -> tuple[RowScores, ...]:
        """A few rows with the lowest perplexity, best first."""
        return self.rows[::-1][: self._few]

    @property
    def _few(self) -> int:
        return min(MAX_SHOWN_ROWS, len(self.rows) // 2)
