"""What perplexity is worked out of: examples, each of their tokens in a group, and what is told of the groups."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import NamedTuple

from ...core.jobs import KnownRow, Stretch
from .eval_loop import Group, Some, Sums


class Told(NamedTuple):
    """How well it is known along its length; of rows also which are known least and best."""

    stretches: tuple[Stretch, ...]
    rows: tuple[KnownRow, ...] = ()


@dataclass(frozen=True)
class Material:
    """A text's windows, or rows; what is measured of each group becomes what is told."""

    name: str
    examples: Some
    groups: Sequence[Group]
    count: int  # of groups
    stride: int
    max_length: int
    told: Callable[[Sums], Told]
    notes: tuple[str, ...] = ()
