"""Learned against forgotten: the frontier of a way, what is read from it, and which ways differ.

The differences between a way and the first one of its question are paired by text and seed. Their intervals are
bootstrap-t intervals of 95 %, together for all ways and measures of a question: in each resample of the pairs, the
largest error of all, in units of its own standard error, is noted, and 95 % of these bound every interval (max-T).
An interval is also at least as wide as shuffling the labels demands, in the same way over all comparisons. Texts
are few and not drawn at random, so an interval speaks of these texts.
"""

from __future__ import annotations

import math
import statistics
from collections.abc import Collection, Iterator, Mapping, Sequence
from functools import cache
from itertools import pairwise, product
from typing import Any, NamedTuple

import numpy as np

from .questions import UNTRAINED, Key, Measure, Question, Run, Way
from .results import Result

LITTLE, MORE, HALF = 0.1, 0.3, 0.5
"""Rises of the loss on general text that are compared at, and a recall that is."""
NEAR = 0.95
MIN_PAIRS = 6
"""With fewer, a resample often has a single pair and no spread, and the intervals are endless."""
GRID = 0.005
"""About what a best rate half-way between two that were run costs. With blocks, the loss on unseen text is 3.811
at 2e-4, 3.787 at 4e-4 and 3.803 at 8e-4: 0.02 for a factor of two, and a quarter of that for half of it. This was
decided after two ways had differed by less than it leaves; the page names them."""
BRACKET = 2 * MORE
"""Two rates whose rises are further apart say nothing of what lies between them."""
SEEDS_AT_ONCE = 3
RESAMPLES, CHANCE = 100_000, 0.05
SHUFFLES = 4096
UNITS: Mapping[Measure, str] = {
    "recall_01": "recall with a rise of general loss of at most 0.1",
    "recall_03": "recall with a rise of general loss of at most 0.3",
    "inside_03": "recall inside sentences with a rise of general loss of at most 0.3",
    "general_50": "general loss where recall is 50%",
    "unseen": "lowest loss on unseen text",
    "copied": "copied where unseen text is best",
    "answers_03": "questions answered with a rise of general loss of at most 0.3",
}
SHARES: frozenset[Measure] = frozenset({"recall_01", "recall_03", "inside_03", "copied", "answers_03"})
Pair = tuple[str, int]
"""A text and a seed."""


class Point(NamedTuple):
    """A run of a way: its rate, by how much it raised the loss on general text, and its figures."""

    rate: float
    rise: float
    result: Result


def frontiers(question: Question, way: Way, done: Mapping[Key, Result], model: str) -> dict[Pair, list[Point]]:
    """For each text and seed the untrained model and the runs of a way, from the lowest rate to the highest.

    Only those that have every rate of the way: else a pair with more rates had more to choose from. And only
    seeds that all texts have, three at a time: whoever looks after each run stops at the luckiest. A run that
    diverged has risen without end: its model is damaged beyond figures.
    """
    found: dict[Pair, list[Point]] = {}
    seeds = sorted({key.seed for key in done})
    for text in question.texts:
        zero = done.get(Run(text, UNTRAINED, 0.0, 1).key(model))
        for seed in seeds if zero else ():
            runs = [done.get(Run(text, way, rate, seed).key(model)) for rate in question.rates_of(way)]
            if zero and all(runs):
                found[text, seed] = [Point(run.rate, _rise(run, zero), run) for run in (zero, *runs) if run]
    whole = [seed for seed in seeds if all((text, seed) in found for text in question.texts)]
    counted = whole[: len(whole) // SEEDS_AT_ONCE * SEEDS_AT_ONCE]
    return {pair: points for pair, points in found.items() if pair[1] in counted}


def _rise(run: Result, zero: Result) -> float:
    if run.general_loss is None or zero.general_loss is None:
        return math.inf
    return run.general_loss - zero.general_loss


def read_measure(measure: Measure, frontiers: Mapping[Pair, Sequence[Point]]) -> dict[Pair, float]:
    """A figure of a way for each text and seed; not a number, for all of them, where one of them has none."""
    texts = {text for text, _ in frontiers}
    by_text = [[points for pair, points in frontiers.items() if pair[0] == text] for text in texts]
    figures = {pair: _figure(measure, points) for pair, points in frontiers.items()}
    has_none = measure in ("unseen", "copied") and not all(map(has_best_rate, by_text))
    return dict.fromkeys(figures, math.nan) if has_none or any(map(math.isnan, figures.values())) else figures


def _figure(measure: Measure, points: Sequence[Point]) -> float:
    match measure:
        case "recall_01":
            return best_within(points, LITTLE, "recall")
        case "recall_03":
            return best_within(points, MORE, "recall")
        case "inside_03":
            return best_within(points, MORE, "inside_recall")
        case "answers_03":
            return best_within(points, MORE, "closed_book")
        case "general_50":
            return forgotten_at_half(points)
        case "unseen":
            return figure_of(best_on_unseen(points), "unseen_loss")
        case "copied":
            return figure_of(best_on_unseen(points), "copied")


def best_on_unseen(points: Sequence[Point]) -> Point:
    """The trained run with the lowest loss on unseen text; the untrained model if all diverged."""
    trained = [point for point in points[1:] if point.rise < math.inf]
    return min(trained, key=lambda point: figure_of(point, "unseen_loss"), default=points[0])


def has_best_rate(frontiers: Collection[Sequence[Point]]) -> bool:
    """Whether unseen text is best, by the means, between two rates: beyond the last one, it may be better."""
    means = [
        statistics.fmean(math.inf if point.rise == math.inf else figure_of(point, "unseen_loss") for point in same)
        for same in zip(*(points[1:] for points in frontiers), strict=True)
    ]
    return bool(means) and min(means) < min(means[0], means[-1])


def best_within(points: Sequence[Point], rise: float, figure: str) -> float:
    """The highest figure on the straight lines between points where general loss has risen by at most so much.

    Not a number if a figure was not measured, if no rate raises it by so much (with a higher one, the way might
    have learned more for it), or if the rates around that rise are far apart.
    """
    if max(point.rise for point in points) < rise or any(
        low.rise <= rise < high.rise and BRACKET < high.rise - low.rise < math.inf
        for low, high in pairwise(points)
    ):
        return math.nan
    values = [value for at, value in _walk(points, figure, rise) if at <= rise]
    return math.nan if any(map(math.isnan, values)) else max(values)


def forgotten_at_half(points: Sequence[Point]) -> float:
    """The lowest loss on general text with a recall of a half, on the straight lines between points."""
    found = [figure_of(point, "general_loss") for point in points if figure_of(point, "recall") >= HALF]
    for one, two in pairwise(points):
        low, high = figure_of(one, "recall"), figure_of(two, "recall")
        if (low < HALF) != (high < HALF):
            share = (HALF - low) / (high - low)
            start, end = figure_of(one, "general_loss"), figure_of(two, "general_loss")
            found.append(start + share * (end - start))
    return min(found, default=math.nan)


def rate_at(points: Sequence[Point], rise: float) -> float:
    """The rate at which general loss first passes a rise; between two rates near it, by their logarithms."""
    for one, two in pairwise(points[1:]):
        if one.rise <= rise < two.rise <= one.rise + BRACKET:
            share = (rise - one.rise) / (two.rise - one.rise)
            return float(math.exp(math.log(one.rate) + share * (math.log(two.rate) - math.log(one.rate))))
    return math.nan


def _walk(points: Sequence[Point], figure: str, rise: float) -> Iterator[tuple[float, float]]:
    """Rise and figure of every point, and of each place between two of them where a line crosses the rise."""
    finite = [point for point in points if point.rise < math.inf]
    for point in finite:
        yield point.rise, figure_of(point, figure)
    for one, two in pairwise(finite):
        if (one.rise <= rise) != (two.rise <= rise):
            share = (rise - one.rise) / (two.rise - one.rise)
            yield rise, figure_of(one, figure) + share * (figure_of(two, figure) - figure_of(one, figure))


def figure_of(point: Point, name: str) -> float:
    value = getattr(point.result, name)
    return math.nan if value is None else float(value)


class Difference(NamedTuple):
    """How a way differs from the first one of its question by a measure."""

    question: str
    way: str
    base: str
    measure: Measure
    pairs: int
    mean: float
    low: float
    high: float
    above: int
    """Pairs in which the way has the larger figure."""
    errors: float
    """How many standard errors the interval reaches to each side, without what the grid of rates adds."""
    alone: float
    """How many it would reach if this were the only comparison."""
    by_text: dict[str, float]
    """The mean difference of each text."""

    @property
    def is_told(self) -> bool:
        """Whether the two are told apart: the interval excludes 0."""
        return self.low > 0 or self.high < 0

    @property
    def smallest(self) -> float:
        """The difference beyond which these runs would have told the ways apart."""
        return (self.high - self.low) / 2

    @property
    def is_near(self) -> bool:
        """Whether it is not told, but nearly, or would be without what the grid of rates may cost."""
        return not self.is_told and abs(self.mean) >= NEAR * self._without_grid

    @property
    def is_told_by_runs(self) -> bool:
        """Whether it would be told if the rates between those that were run cost nothing."""
        return abs(self.mean) > self._without_grid

    @property
    def _without_grid(self) -> float:
        return self.smallest - GRID * (self.measure == "unseen")


def paired(base: Mapping[Pair, float], way: Mapping[Pair, float]) -> dict[Pair, float]:
    """By how much a way differs from the base, for each text and seed that both have a figure for."""
    apart = {pair: way[pair] - base[pair] for pair in sorted(base.keys() & way.keys())}
    return {pair: value for pair, value in apart.items() if not math.isnan(value)}


class Table(NamedTuple):
    """The differences of a question: a row for each way and measure that is compared, a column for each pair."""

    rows: list[tuple[str, Measure]]
    pairs: list[Pair]
    differences: Any

    @property
    def grid(self) -> Any:
        """What the rates that were not run may cost each row."""
        return np.array([GRID * (measure == "unseen") for _, measure in self.rows])


def make_table(question: Question, values: Mapping[str, Mapping[Measure, Mapping[Pair, float]]]) -> Table | None:
    """The differences of every way from the first; None if there are too few pairs."""
    base, *others = [way.name for way in question.ways] or [""]
    rows: dict[tuple[str, Measure], Mapping[Pair, float]] = {}
    for way, measure in product(others, question.measures):
        known = paired(values[base][measure], values[way][measure])
        # Where hardly anything is copied, a resample has no spread.
        if len(known) >= MIN_PAIRS and 2 * np.count_nonzero([*known.values()]) >= len(known):
            rows[way, measure] = known
    # Resampled together, so all of them need the same pairs.
    pairs = sorted(set.intersection(*map(set, rows.values()))) if rows else []
    if len(pairs) < MIN_PAIRS:
        return None
    return Table([*rows], pairs, np.array([[known[pair] for pair in pairs] for known in rows.values()]))


def compare(question: Question, values: Mapping[str, Mapping[Measure, Mapping[Pair, float]]]) -> list[Difference]:
    """The differences of every way from the first, by its figures for each measure and pair."""
    table = make_table(question, values)
    if table is None:
        return []
    texts = sorted({text for text, _ in table.pairs})
    reach = reach_of(table.differences)
    found = []
    for (way, measure), apart, grid in zip(table.rows, table.differences, table.grid, strict=True):
        mean, width = float(apart.mean()), float(reach * _error(apart) + grid)
        by_text = {name: float(apart[[text == name for text, _ in table.pairs]].mean()) for name in texts}
        found.append(
            Difference(
                question.name, way, question.ways[0].name, measure, len(table.pairs), mean, mean - width,
                mean + width, int((apart > 0).sum()), reach, reach_of(apart[None]), by_text,
            )
        )  # fmt: skip
    return found


def _error(differences: Any) -> Any:
    """The standard error of the mean, over the pairs."""
    return differences.std(axis=-1, ddof=1) / math.sqrt(differences.shape[-1])


def reach_of(differences: Any, resamples: int = RESAMPLES) -> float:
    """How many standard errors the intervals of all rows reach to each side, corrected for their number."""
    rng = np.random.default_rng(1)
    pairs = differences.shape[-1]
    drawn = differences[:, rng.integers(0, pairs, (resamples, pairs))]
    off = np.abs(drawn.mean(axis=-1) - differences.mean(axis=-1)[:, None])
    # With few pairs the bootstrap alone would claim too often: if labels are shuffled within the pairs, at most
    # 5 % of the tables may exceed the interval. This is exact, because a shuffled table has the same shuffles.
    shuffled = differences[:, None] * _signs(pairs)
    both = ((off, _error(drawn)), (np.abs(shuffled.mean(axis=-1)), _error(shuffled)))
    return max(float(np.quantile(_most_apart(*each), 1 - CHANCE, method="higher")) for each in both)


def _most_apart(off: Any, errors: Any) -> Any:
    """The largest ratio of all comparisons; nothing is too far for a resample that has no error of its own."""
    return np.where(off > 0, off / np.where(errors > 0, errors, 1e-300), 0.0).max(axis=0)


@cache
def _signs(pairs: int) -> Any:
    """All ways to shuffle the labels of so many pairs, or many of them."""
    if 2**pairs <= SHUFFLES:
        return np.array(list(product((-1, 1), repeat=pairs)))
    return np.random.default_rng(3).choice((-1, 1), (SHUFFLES, pairs))


def told_by_chance(table: Table, tables: int, planted: float = 0.0, row: int = 0) -> float:
    """The share of shuffled tables in which a difference is told that is not there.

    The labels of each way and the first one are shuffled within each pair, the same for all measures. With
    `planted`, this row is better by so much, and the share is that of the tables in which this is found.
    """
    rng, ways = np.random.default_rng(2), sorted({way for way, _ in table.rows})
    residuals = table.differences - table.differences.mean(axis=-1, keepdims=True)
    told = 0
    for _ in range(tables):
        signs = dict(zip(ways, rng.choice((-1, 1), (len(ways), len(table.pairs))), strict=True))
        shuffled = residuals * np.array([signs[way] for way, _ in table.rows])
        shuffled[row] += planted
        beyond = shuffled.mean(axis=-1) / (reach_of(shuffled, 1000) * _error(shuffled) + table.grid)
        told += bool(beyond[row] > 1 if planted else (np.abs(beyond) > 1).any())
    return told / tables
