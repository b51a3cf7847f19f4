"""Input of a perplexity measurement: examples, the group of each token, and how groups become results."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core.jobs import KnownRow, Stretch
from .eval_loop import Group, Some, Sums


class Told(NamedTuple):
    """Scores along the length of a dataset, and for rows the scores of the least and best known ones."""

    stretches: tuple[Stretch, ...]
    rows: tuple[KnownRow, ...] = ()


@dataclass(frozen=True)
class Material:
    """Windows of a text, or rows, with a function that turns the sums of their groups into scores."""

    name: str
    examples: Some
    groups: Sequence[Group]
    count: int  # of groups
    stride: int
    max_length: int
    score: Callable[[Sums], Told]
    notes: tuple[str, ...] = ()
