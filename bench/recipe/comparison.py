"""Which setups of a table differ: intervals of paired differences, corrected for the number of pairs.

    python3 bench/recipes.py null      how often this rule claims a difference where there is none, or finds one

Three runs are too few to know the spread of one setup, so a pair's spread is the larger of its own and that of the
whole table. Where spreads differ, the table's has fewer degrees of freedom than runs (Satterthwaite).
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from functools import cache
from typing import Any, NamedTuple

import numpy as np

MIN_RUNS = 3
CHANCE = 0.05
"""How often a table without any difference may claim one, over all its pairs and measures."""
ROUNDING = 1e-9


class Differences(NamedTuple):
    """The mean differences between setups, and how large each must be to be told apart."""

    names: tuple[str, ...]
    means: Any
    margins: Any
    smallest: float
    """The smallest difference that could have been told apart, between two setups of usual spread."""

    def sign(self, first: str, second: str) -> int:
        """1 if the first is told apart as higher, -1 as lower, 0 if it is not told apart."""
        place = self.names.index(first), self.names.index(second)
        return int(np.sign(self.means[place])) if self.is_told(place) else 0

    def mean(self, first: str, second: str) -> float:
        return float(self.means[self.names.index(first), self.names.index(second)])

    def is_told(self, place: tuple[int, int]) -> bool:
        return bool(abs(self.means[place]) > self.margins[place] + ROUNDING)


def compare(values: Mapping[str, Mapping[int, float]], measures: int) -> Differences | None:
    """Compare setups by their figures at each seed; None without two setups with enough seeds in common."""
    enough = {name: by_seed for name, by_seed in values.items() if len(by_seed) >= MIN_RUNS}
    seeds = sorted(set.intersection(*map(set, enough.values()))) if enough else []
    if len(enough) < 2 or len(seeds) < MIN_RUNS:
        return None
    means, margins, smallest = measure_differences(
        np.array([[by_seed[seed] for seed in seeds] for by_seed in enough.values()]), measures
    )
    return Differences(tuple(enough), means, margins, float(smallest))


def measure_differences(figures: Any, measures: int) -> tuple[Any, Any, Any]:
    """Mean differences, the margin of each and the usual margin, for figures by (tables,) setups and seeds."""
    *_, setups, seeds = figures.shape
    differences = figures[..., :, None, :] - figures[..., None, :, :]
    own = differences.var(axis=-1, ddof=1)
    residuals = figures - figures.mean(axis=-1, keepdims=True)
    residuals = residuals - residuals.mean(axis=-2, keepdims=True)  # what a seed does to all setups alike
    spreads = (residuals**2).sum(axis=-1) / (seeds - 1) * setups / (setups - 1)
    squares = (spreads**2).sum(axis=-1)
    freedom = (seeds - 1) * spreads.sum(axis=-1) ** 2 / np.where(squares, squares, 1)
    freedom = np.clip(freedom, seeds - 1, (setups - 1) * (seeds - 1))
    usual = 2 * spreads.mean(axis=-1)
    chance = CHANCE / (setups * (setups - 1) / 2) / measures
    quantile = np.vectorize(lambda each: student_quantile(math.floor(10 * each) / 10, chance))(freedom)
    margins = quantile[..., None, None] * np.sqrt(np.maximum(own, usual[..., None, None]) / seeds)
    return differences.mean(axis=-1), margins, quantile * np.sqrt(usual / seeds)


@cache
def student_quantile(freedom: float, chance: float) -> float:
    """The value that Student's t exceeds, in size, with this chance; integrated, for want of scipy."""
    scale = math.exp(math.lgamma((freedom + 1) / 2) - math.lgamma(freedom / 2)) / math.sqrt(math.pi)
    low, high = 0.0, 1e5
    while high - low > 1e-6 * high:
        middle = (low + high) / 2
        angles = np.linspace(math.atan(middle / math.sqrt(freedom)), math.pi / 2, 2001)  # t = sqrt(freedom) tan
        tail = scale * float(np.trapezoid(np.cos(angles) ** (freedom - 1), angles))
        low, high = (middle, high) if 2 * tail > chance else (low, middle)
    return high


def false_claims(figures: Sequence[Any], tables: int, rng: Any) -> float:
    """The share of tables like this one, but without differences, in which a difference is claimed.

    `figures` are the real ones by measure. Every setup keeps its own spread; only the means are made equal.
    """
    claimed = np.zeros(tables, bool)
    for real in figures:
        noise = rng.normal(0, 1, (tables, *real.shape)) * real.std(axis=1, ddof=1)[:, None]
        claimed |= _claims(noise, len(figures)).any(axis=(-1, -2))
    return float(claimed.mean())


def found(noise: Any, setups: int, seeds: int, planted: float, tables: int, rng: Any) -> tuple[float, float]:
    """Shares of empty tables with a false claim, and of tables in which a planted difference is found.

    The spread of all runs is drawn from that of real ones.
    """
    figures = rng.choice(noise, (tables, setups, seeds))
    false = _claims(figures, 2).any(axis=(-1, -2)).mean()
    figures[:, 0] += planted
    return float(false), float(_claims(figures, 2)[:, 0, 1].mean())


def _claims(figures: Any, measures: int) -> Any:
    means, margins, _ = measure_differences(figures, measures)
    return np.abs(means) > margins + ROUNDING


def pool_residuals(figures: Sequence[Any]) -> Any:
    """How far each run is from the mean of its setup, scaled to the spread of single runs."""
    seeds = figures[0].shape[1]
    return np.concatenate(
        [((each - each.mean(axis=1, keepdims=True)) * math.sqrt(seeds / (seeds - 1))).ravel() for each in figures]
    )
