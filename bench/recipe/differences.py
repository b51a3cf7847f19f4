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
MIN_PAIRS = 6
"""With fewer, a resample often has a single pair and no spread, and the intervals are endless."""
GRID = 0.005
"""What a best rate half-way between two that were run costs at most. With blocks, the loss on unseen text is 3.811
at 2e-4, 3.787 at 4e-4 and 3.803 at 8e-4: 0.02 for a factor of two, and a quarter of that for half of it."""
SEEDS_AT_ONCE = 3
RESAMPLES, CHANCE = 4000, 0.05
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
    """A figure of a way for each text and seed; not a number where it has none."""
    texts = {text for text, _ in frontiers}
    by_text = [[points for pair, points in frontiers.items() if pair[0] == text] for text in texts]
    if measure in ("unseen", "copied") and not all(map(has_best_rate, by_text)):
        return dict.fromkeys(frontiers, math.nan)
    return {pair: _figure(measure, points) for pair, points in frontiers.items()}


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

    Not a number if a figure was not measured, or if no rate raises it by so much: with a higher one, the way might
    have learned more for it.
    """
    if max(point.rise for point in points) < rise:
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
    """The rate at which general loss first passes a rise; between two rates, by their logarithms."""
    for one, two in pairwise(points[1:]):
        if one.rise <= rise < two.rise < math.inf:
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


def paired(base: Mapping[Pair, float], way: Mapping[Pair, float]) -> dict[Pair, float]:
    """By how much a way differs from the base, for each text and seed that both have a figure for."""
    apart = {pair: way[pair] - base[pair] for pair in sorted(base.keys() & way.keys())}
    return {pair: value for pair, value in apart.items() if not math.isnan(value)}


def compare(question: Question, values: Mapping[str, Mapping[Measure, Mapping[Pair, float]]]) -> list[Difference]:
    """The differences of every way from the first, by its figures for each measure and pair."""
    if len(question.ways) < 2:
        return []
    base, *others = (way.name for way in question.ways)
    rows: list[tuple[str, Measure, Mapping[Pair, float]]] = []
    for way in others:
        for measure in question.measures:
            known = paired(values[base][measure], values[way][measure])
            if len(known) >= MIN_PAIRS and any(known.values()):  # where nothing is copied, nothing is compared
                rows.append((way, measure, known))
    # Resampled together, so all of them need the same pairs.
    pairs = sorted(set.intersection(*(set(known) for *_, known in rows))) if rows else []
    if len(pairs) < MIN_PAIRS:
        return []
    differences = np.array([[known[pair] for pair in pairs] for *_, known in rows])
    means, (low, high), above = differences.mean(axis=1), intervals(differences), (differences > 0).sum(axis=1)
    grid = np.array([GRID * (measure == "unseen") for _, measure, _ in rows])
    low, high = low - grid, high + grid
    return [
        Difference(
            question.name, way, base, measure, len(pairs), *map(float, figures), int(count), _by_text(known)
        )
        for (way, measure, known), *figures, count in zip(rows, means, low, high, above, strict=True)
    ]


def _by_text(known: Mapping[Pair, float]) -> dict[str, float]:
    texts = sorted({text for text, _ in known})
    return {text: statistics.fmean(value for pair, value in known.items() if pair[0] == text) for text in texts}


def intervals(differences: Any, resamples: int = RESAMPLES) -> tuple[Any, Any]:
    """Intervals of the mean differences, for differences by comparison and pair, corrected for all comparisons."""
    rng = np.random.default_rng(1)
    _, pairs = differences.shape
    means, errors = differences.mean(axis=1), differences.std(axis=1, ddof=1) / math.sqrt(pairs)
    drawn = differences[:, rng.integers(0, pairs, (resamples, pairs))]
    drawn_errors = drawn.std(axis=-1, ddof=1) / math.sqrt(pairs)
    off = np.abs(drawn.mean(axis=-1) - means[:, None])
    widest = np.quantile(_most_apart(off, drawn_errors), 1 - CHANCE, method="higher")
    # With few pairs the bootstrap alone would claim too often: if labels are shuffled within the pairs, at most
    # 5 % of the tables may exceed the interval. This is exact, because a shuffled table has the same shuffles.
    shuffled = differences[:, None] * _signs(pairs)
    errors_shuffled = shuffled.std(axis=-1, ddof=1) / math.sqrt(pairs)
    by_shuffling = np.quantile(
        _most_apart(np.abs(shuffled.mean(axis=-1)), errors_shuffled), 1 - CHANCE, method="higher"
    )
    widest = max(widest, by_shuffling)
    return means - widest * errors, means + widest * errors


def _most_apart(off: Any, errors: Any) -> Any:
    """The largest ratio of all comparisons; nothing is too far for a resample that has no error of its own."""
    return np.where(off > 0, off / np.where(errors > 0, errors, 1e-300), 0.0).max(axis=0)


@cache
def _signs(pairs: int) -> Any:
    """All ways to shuffle the labels of so many pairs, or many of them."""
    if 2**pairs <= RESAMPLES + 100:
        return np.array(list(product((-1, 1), repeat=pairs)))
    return np.random.default_rng(3).choice((-1, 1), (RESAMPLES, pairs))


def claims_by_chance(differences: Sequence[float], tables: int, planted: float = 0.0) -> float:
    """The share of tables in which a difference is claimed between two ways that are equal.

    The labels of the two ways are shuffled within each pair; with `planted`, one of them is better by so much, and
    the share is that of the tables in which this is found.
    """
    rng = np.random.default_rng(2)
    residuals = np.asarray(differences) - np.mean(differences)
    claimed = 0
    for _ in range(tables):
        shuffled = residuals * rng.choice((-1, 1), len(residuals)) + planted
        low, high = intervals(shuffled[None], 1000)
        claimed += bool(low[0] > 0 or (high[0] < 0 and not planted))
    return claimed / tables
