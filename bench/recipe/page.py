"""The page that says what works: claims with their intervals, a picture for each main question, and the tables."""

from __future__ import annotations

import math
import statistics
import textwrap
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from itertools import chain, product
from pathlib import Path
from typing import Any

import numpy as np

from ...train_utils import format_count
from .differences import (
    BRACKET,
    GRID,
    LITTLE,
    MIN_PAIRS,
    MORE,
    SHARES,
    UNITS,
    Difference,
    Pair,
    Point,
    best_on_unseen,
    best_within,
    compare,
    figure_of,
    frontiers,
    rate_at,
    read_measure,
)
from .questions import QUESTIONS, UNTRAINED, Measure, Question, Run, Way
from .results import Result
from .texts import TEXTS

WIDTH = 115
SHOWN_PAIRS = 3  # so many are shown, but tell nothing apart
INTRODUCTION = """# What works

How much does a model learn of a text, and how much does it forget for that? This page says what {runs} runs can
tell; {read} of them are in its tables.

**What they can't tell you.** There is one model, {model}. If it is the demo model, it is small, and its weights
are from a 4-bit GGUF file (Q4_1). Nobody has judged the replies. A question has one to four texts, too few to
speak of others.
"""
METHOD = """## How to read the tables

`python3 bench/recipes.py run` makes the runs, and `python3 bench/recipes.py report --out docs/what-works.md`
writes this page.

**What the runs have in common**, unless the name of a way says otherwise: rank and alpha 32 on all linear
layers, a cutoff of 128 tokens (chats: 512), batches of 4, about 36,000 trained tokens in steps of 230 to 450,
and a cosine schedule after a warmup of 5%. So *rank 32*, *3 passes*, *blocks* and *cosine* are the same runs.
Many ways have four rates, two of them far above the default of 2e-4. Ways that do as much at another rate
have others.

- A **way** is one way to train. Each is run at several learning rates, because a way usually forgets more at a
  higher rate. So ways are compared **at the same limit of forgetting**: the most that a way recalls while the
  loss on general text (8 passages of up to 256 tokens of this project's own prose) has risen by at most
  {little} (little) or {more} (a lot) over the untrained model's. Between two rates, the figures are on a
  straight line. There is no figure where the rises at the two rates are more than {bracket} apart.
- **Recall** is the share of the next 32 tokens that the model reproduces word for word before its first
  mistake. Its passages begin at the second word of random sentences, the same for all ways, and never where an
  example begins (of chats: where replies begin); those of recall **inside sentences** begin in the middle of
  one, because the windows of DEMENTOR begin at every sentence. One passage of 48 is 2.1 points, and the
  intervals are for these passages.
- **Unseen text** is from the same book, or of the same kind. Its lowest loss is that at the best of these
  rates, which lie a factor of two or more apart, so its intervals are wider by {grid}, a guess from the runs
  with blocks. A way whose best rate is the lowest or the highest of its rates, in any text, has no figure.
  **Copied** is the share of 8-word runs that stand in the training text, in 8 continuations of 64 tokens at
  that rate.
- Differences are paired by text and seed, with bootstrap-t intervals of 95%, corrected for all ways and
  measures of a question (max-T), and wide enough that shuffled labels exceed them in at most 5% of tables. A
  difference is told only if its interval excludes 0. It takes at least {pairs} pairs, and seeds count in
  threes, when all texts have them. The spread between the texts is in the interval, so with two texts and few
  seeds only large differences are told, and one as large as the smallest that would have been told is missed
  in a fifth to a half of cases.
  `python3 bench/recipes.py null` shuffles whole tables, and says how often this rule tells
  what is not there: in 0 to 2% of 1,000 tables, so it misses more than a rule that errs in 5% would.
- **What was decided after first results**: that rates and schedules were dropped and added, also rates below the
  default; recall inside sentences, without which one more difference between blocks and DEMENTOR would be told;
  that a lowest loss is one that was run, where a parabola had been laid through three; {grid} for the rates
  between, without which the loss of DEMENTOR on unseen text would be told, and that of a constant schedule would
  have been, until the last three schedules made all intervals wider; that the best rate must lie inside;
  "at most" instead of "at" a rise; no figure between rates more than {bracket} apart, and none for a way that
  lacks it in one pair; the rule of threes, after slicing was looked at with three, six and nine pairs, while
  other questions about two texts have three seeds.
"""
UNKNOWN = """## What is not known

- Whether any of this holds for models of 1B parameters and more, or for texts of a million words.
- Whether readers would prefer what one of these ways writes.
- Whether a way that is not told apart is equal.
"""


@dataclass(frozen=True)
class Answer:
    """What the runs say of a question: the frontiers of its ways, their figures, and the differences.

    Its ways are those with enough pairs of text and seed, if the first one, which all are compared with, has them.
    A way that has fewer pairs than another waits, so that none of the pairs that are there is left out.
    """

    question: Question
    frontiers: Mapping[str, Mapping[Pair, list[Point]]]
    values: Mapping[str, Mapping[Measure, Mapping[Pair, float]]]
    differences: Sequence[Difference]

    @property
    def is_known(self) -> bool:
        """Whether ways can be compared; a question about one way is answered by its rates."""
        return len(self.question.ways) >= min(2, len(QUESTIONS[self.question.name].ways))

    @property
    def pairs(self) -> set[Pair]:
        """Pairs of text and seed of which every way has all its runs."""
        every = [set(pairs) for pairs in self.frontiers.values()]
        return set.intersection(*every) if every else set()

    def mean(self, way: str, measure: Measure, text: str = "") -> float:
        """The mean over the pairs that all ways have, of one text or of all."""
        values = self.values[way][measure]
        pairs = [pair for pair in self.pairs if text in ("", pair[0])]
        known = [values[pair] for pair in pairs if not math.isnan(values[pair])]
        return statistics.fmean(known) if known else math.nan


def answer(question: Question, results: Sequence[Result], model: str) -> Answer:
    """Answer a question with the runs that are there."""
    done = {result.key: result for result in results}
    every = {way.name: frontiers(question, way, done, model) for way in question.ways}
    base, *others = (len(every[way.name]) for way in question.ways)
    least = max(MIN_PAIRS if base >= MIN_PAIRS else SHOWN_PAIRS, min(base, max(others, default=0)))
    found = {name: pairs for name, pairs in every.items() if base >= least <= len(pairs)}
    question = replace(question, ways=tuple(way for way in question.ways if way.name in found))
    values = {
        way: {measure: read_measure(measure, pairs) for measure in question.measures}
        for way, pairs in found.items()
    }
    return Answer(question, found, values, compare(question, values))


def answers(results: Sequence[Result], model: str = "") -> list[Answer]:
    """Answer every question, for one model: the one with the most runs if none is named."""
    model = model or main_model(results)
    return [answer(question, results, model) for question in QUESTIONS.values()]


def main_model(results: Sequence[Result]) -> str:
    return Counter(result.model for result in results).most_common(1)[0][0] if results else ""


def claims(results: Sequence[Result], model: str = "") -> list[dict[str, object]]:
    """Every difference that is told apart, as a record: the page says no more than these."""
    return [
        {**difference._asdict(), "claim": sentence(difference)}
        for each in answers(results, model)
        for difference in each.differences
        if difference.is_told
    ]


def sentence(difference: Difference) -> str:
    """A claim in words, with its interval."""
    measure = difference.measure
    more = "higher" if difference.mean > 0 else "lower"
    low, high = sorted((abs(difference.low), abs(difference.high)))
    unit = " points" if measure in SHARES else ""
    by_text = ", ".join(f"{text} {_signed(measure, mean)}" for text, mean in difference.by_text.items())
    return (
        f"**{difference.way}** has a {more} {UNITS[measure]} than **{difference.base}**, by "
        f"{_number(measure, abs(difference.mean))}{unit} (95% interval {_number(measure, low)} to "
        f"{_number(measure, high)}, {format_count(difference.pairs, 'pair')}; {by_text})."
    )


def _number(measure: Measure, value: float) -> str:
    return f"{100 * value:.1f}" if measure in SHARES else f"{value:.3f}"


def page(
    results: Sequence[Result],
    sizes: Mapping[str, Mapping[str, int]],
    pictures: Mapping[str, str],
    model: str = "",
) -> str:
    """The whole page, in Markdown; `pictures` are the paths of the pictures by question, seen from the page."""
    model = model or main_model(results)
    given = [each for each in answers(results, model) if each.is_known]
    made = {result.key for result in results if result.tokens}
    read = {
        p.result.key for each in given for pairs in each.frontiers.values() for ps in pairs.values() for p in ps
    }
    head = INTRODUCTION.format(runs=len(made), read=len(made & read), model=model or "none yet")
    method = METHOD.format(little=LITTLE, more=MORE, bracket=f"{BRACKET:g}", pairs=MIN_PAIRS, grid=GRID)
    drawn = {name: f"![{QUESTIONS[name].words}]({picture})" for name, picture in pictures.items()}
    parts = [head, *_conclusions(given, drawn), method, *_sizes(results, sizes, model)]
    for each in given:
        parts += [f"## {each.question.words}", ""]
        parts += [_fill(each.question.background), ""] if each.question.background else []
        parts += [*_said(each), ""]
        parts += [picture, ""] if not each.question.required and (picture := drawn.get(each.question.name)) else []
        # Too few pairs to compare ways at the same forgetting: what each rate does says it all.
        parts += [*_table(each), ""] if each.differences or len(each.question.ways) == 1 else []
        parts += _by_rate(each)
    return "\n".join([*parts, UNKNOWN, *_waiting(given)])


def _conclusions(given: Sequence[Answer], pictures: Mapping[str, str]) -> list[str]:
    """Three conclusions in plain words, rendered from the figures of the tables, with a picture each."""
    known, said = {each.question.name: each for each in given}, dict[str, str]()
    differences = [apart for each in given for apart in each.differences]
    compared = [(each, way) for each in given if each.differences for way in each.question.ways[1:]]
    others = [_best_rate(each, way) for each, way in compared]
    if rated := known.get("rate"):
        (way,) = rated.question.ways
        best = Counter(best_on_unseen(points).rate for points in rated.frontiers[way.name].values())
        (rate, count), rates = best.most_common(1)[0], rated.question.rates_of(way)
        said["rate"] = (
            f"**With about three passes and a cosine schedule, {_rate(rate)} predicts unseen text best** of "
            f"{len(rates)} rates, in {count} of {best.total()} pairs of text and seed. General loss shows what is "
            f"forgotten besides. It has risen {_crossing(rated, way, LITTLE)}."
        )
        if others:
            said["rate"] += f" Other ways are best from {_rate(min(others))} to {_rate(max(others))}."
    every = [points for each in given for pairs in each.frontiers.values() for points in pairs.values()]
    kept = [figure_of(point, "recall") for points in every for point in points if point.rise <= MORE]
    if kept:
        before = [100 * figure_of(points[0], "recall") for points in every]
        most = max(point.result.passes for points in every for point in points)
        between = [share for points in every if not math.isnan(share := best_within(points, MORE, "recall"))]
        said["slicing"] = (
            f"**In {most:.0f} passes or fewer, little is learned by heart before the model forgets.** While "
            f"general loss has risen by at most {MORE}, no run recalls more than {100 * max(kept):.1f}% of the "
            f"next 32 tokens, and no line between two runs more than {100 * max(between, default=0):.1f}%. The "
            f"untrained model guesses {min(before):.1f} to {max(before):.1f}%."
        )
    if told := [sentence(apart) for apart in differences if apart.is_told]:
        said["schedule"] = f"**Some ways are told apart.** {' '.join(told)}"
    elif differences:
        names = "; ".join(_compared(each) for each in given if each.differences)
        said["schedule"] = (
            "**Each at its own best rate, or at the same forgetting, no two ways are told apart**, which does not "
            f"mean that they are equal: {names}."
        )
    if near := [_nearly(apart) for apart in differences if apart.is_near]:
        said["schedule"] += f" Close to it: {'; '.join(near)}."
    if compared:
        _, words = max(_at_one_rate(each, way) for each, way in compared)
        said["schedule"] += f" At the same rate, ways can differ more: {words}, the most of all."
    lines = ["## Three conclusions", ""] if said else []
    for number, (name, text) in enumerate(said.items(), start=1):
        lines += [_fill(f"{number}. {text}"), "", *([pictures[name], ""] if name in pictures else [])]
    return lines


def _means(each: Answer, way: Way, figure: str) -> dict[float, float]:
    """The mean of a figure over all pairs, for each rate of a way; none for a rate at which a run diverged."""
    points = [[p for p in each.frontiers[way.name][pair] if p.rate] for pair in sorted(each.pairs)]
    means = {same[0].rate: [figure_of(p, figure) for p in same] for same in zip(*points, strict=True)}
    return {rate: statistics.fmean(values) for rate, values in means.items() if not any(map(math.isnan, values))}


def _best_rate(each: Answer, way: Way) -> float:
    losses = _means(each, way, "unseen_loss")
    return min(losses, key=losses.__getitem__)


def _at_one_rate(each: Answer, way: Way) -> tuple[float, str]:
    """How far the losses of a way and the first one on unseen text are apart at the first one's best rate."""
    base = each.question.ways[0]
    rate, own = _best_rate(each, base), _means(each, way, "unseen_loss")
    apart = own.get(rate, math.nan) - _means(each, base, "unseen_loss")[rate]
    more = "higher" if apart > 0 else "lower"
    words = (
        f"at {_rate(rate)}, the loss on unseen text is {more} by {abs(apart):.3f} with {way.name} than {base.name}"
    )
    return (0.0 if math.isnan(apart) else abs(apart), words)


def _compared(each: Answer) -> str:
    """The ways that are compared, and by what alone if one has no figure for the rest."""
    base, *others = (way.name for way in each.question.ways)
    for number, name in enumerate(others):
        by_unseen = {apart.measure == "unseen" for apart in each.differences if apart.way == name}
        if len(by_unseen) == 1:
            others[number] += " (by unseen text alone)" if by_unseen == {True} else " (not by unseen text)"
    return f"{base} against {_listed(others)}"


def _nearly(apart: Difference) -> str:
    unit = " points" if apart.measure in SHARES else ""
    but = f", which would be told but for the {GRID} for the rates between" if apart.is_told_by_runs else ""
    return f"{apart.way}, {UNITS[apart.measure]} {_signed(apart.measure, apart.mean)}{unit}{but}"


def _listed(names: Sequence[str]) -> str:
    return " and ".join(filter(None, (", ".join(names[:-1]), *names[-1:])))


def _rate(rate: float) -> str:
    """A rate as it is written in the settings: 2e-4."""
    return f"{rate:.2e}".replace("e-0", "e-").replace(".00", "").replace("0e", "e")


def _waiting(given: Sequence[Answer]) -> list[str]:
    """The questions that have too few runs to be answered, and ways that have too few to be compared."""
    known = {each.question.name: {way.name for way in each.question.ways} for each in given}
    lines = ["## What waits for more runs", ""]
    for question in QUESTIONS.values():
        names = known.get(question.name, set())
        if ways := [way.name for way in question.ways if way.name not in names]:
            lines.append(_bullet(question.words + (f" Ways: {', '.join(ways)}." if names else "")))
    return [*lines, ""] if lines[2:] else []


def _sizes(results: Sequence[Result], sizes: Mapping[str, Mapping[str, int]], model: str) -> list[str]:
    """How large the texts are, and how well the untrained model predicts them: it may know some of them."""
    done = {result.key: result for result in results}
    columns = list(next(iter(sizes.values()), {}))
    rows = [
        ["text", *columns, "untrained: recall", "on unseen passages", "loss on unseen text", "on general text"]
    ]
    rows += [["---"] * len(rows[0])]
    for text in TEXTS:
        zero = done.get(Run(text, UNTRAINED, 0.0, 1).key(model))
        if zero and text in sizes:
            shares = [f"{100 * (value or 0):.1f}%" for value in (zero.recall, zero.control_recall)]
            losses = [f"{value or 0:.3f}" for value in (zero.unseen_loss, zero.general_loss)]
            rows.append([text, *(f"{sizes[text][column]:,}" for column in columns), *shares, *losses])
    made = sorted({f"{result.machine}; {result.versions}" for result in results if result.model == model})
    return [*(f"| {' | '.join(row)} |" for row in rows), "", _fill(f"Made with: {' and '.join(made)}."), ""]


def _said(each: Answer) -> list[str]:
    """What is claimed, rendered from records alone; then what is not told apart, and what would have been."""
    question, base = each.question, each.question.ways[0].name
    lines = [_bullet(sentence(difference)) for difference in each.differences if difference.is_told]
    if len(question.ways) == 1:
        best = Counter(best_on_unseen(points).rate for points in each.frontiers[base].values())
        counts = [f"at {_rate(rate)} in {count} of {best.total()} pairs" for rate, count in sorted(best.items())]
        lines.append(_bullet(f"Loss on unseen text is lowest {', '.join(counts)} of text and seed."))
    if len(question.ways) > 1 and not each.differences:
        lines.append(f"- With {len(each.pairs)} pairs, nothing is told apart: it takes {MIN_PAIRS}.")
    unsure = [difference for difference in each.differences if not difference.is_told]
    for measure in question.measures:
        same = [difference for difference in unsure if difference.measure == measure]
        if same:
            names = ", ".join(f"{each.way} (above it in {each.above} of {each.pairs} pairs)" for each in same)
            size = _number(measure, max(difference.smallest for difference in same))
            unit = " points" if measure in SHARES else ""
            text = f"Not told apart from **{base}** by {UNITS[measure]}: {names}."
            text += f" An observed mean difference of more than {size}{unit} would have been told."
            if near := [each.way for each in same if each.is_near]:
                text += f" Close to it: {_listed(near)}."
            lines.append(_bullet(text))
    if each.differences:
        widest = max(each.differences, key=lambda difference: difference.alone)
        lines.append(
            _bullet(
                f"An interval reaches {widest.errors:.1f} standard errors to each side. The most uneven "
                f"comparison, {widest.way} by {UNITS[widest.measure]}, would need {widest.alone:.1f} alone."
            )
        )
    return lines


def _bullet(text: str) -> str:
    return textwrap.fill(f"- {text}", WIDTH, subsequent_indent="  ", break_on_hyphens=False)


def _table(each: Answer) -> list[str]:
    """The figures of every way: means, and how far they are from the first way's, with the interval."""
    question = each.question
    measures = [m for m in question.measures if any(not math.isnan(each.mean(w.name, m)) for w in question.ways)]
    rows = [["way", "pairs", *(UNITS[measure] for measure in measures)]]
    rows.append(["---"] * len(rows[0]))
    apart = {(difference.way, difference.measure): difference for difference in each.differences}
    for way in question.ways:
        cells = [way.name, str(len(each.pairs))]
        for measure in measures:
            mean, difference = each.mean(way.name, measure), apart.get((way.name, measure))
            cell = _figure(measure, mean)
            if difference:
                numbers = [_signed(measure, value) for value in (difference.mean, difference.low, difference.high)]
                cell += f" ({numbers[0]}; {numbers[1]} to {numbers[2]})"
                cell = f"**{cell}**" if difference.is_told else cell
            cells.append(cell)
        rows.append(cells)
    for way, text in product(question.ways, question.texts if len(question.texts) > 1 else ()):
        own = [pair for pair in each.pairs if pair[0] == text]
        means = [each.mean(way.name, measure, text) for measure in measures]
        figures = map(_figure, measures, means)
        rows.append([f"{way.name}, {text}", str(len(own)), *figures])
    return [f"| {' | '.join(row)} |" for row in rows]


def _figure(measure: Measure, mean: float) -> str:
    if math.isnan(mean):
        return "no figure"
    return _number(measure, mean) + ("%" if measure in SHARES else "")


def _signed(measure: Measure, value: float) -> str:
    """With a digit more where the sign is all that would be left."""
    digits = 2 if abs(value) < 5e-4 else 1
    return f"{100 * value:+.{digits}f}" if measure in SHARES else f"{value:+.3f}"


def _by_rate(each: Answer) -> list[str]:
    """What each rate does."""
    question = each.question
    shares = {"recall": "recall", "on unseen passages": "control_recall"}
    shares |= {"questions answered": "closed_book"} if "answers_03" in question.measures else {}
    rows = [["way", "rate", "passes over the examples", "rise of general loss", "loss on unseen text", *shares]]
    rows.append(["---"] * len(rows[0]))
    rated = [(way, rate) for way in question.ways for rate in question.rates_of(way)]
    for way, rate in rated:
        every = chain.from_iterable(each.frontiers[way.name][pair] for pair in each.pairs)
        points = [point for point in every if point.rate == rate and point.rise < math.inf]
        if points:
            passes = sorted({f"{end(point.result.passes for point in points):.1f}" for end in (min, max)})
            rise = np.mean([point.rise for point in points])
            unseen = np.mean([figure_of(point, "unseen_loss") for point in points])
            means = [np.mean([100 * figure_of(point, name) for point in points]) for name in shares.values()]
            cells = [way.name, _rate(rate), "-".join(passes), f"{rise:+.3f}", f"{unseen:.3f}"]
            rows.append([*cells, *(f"{mean:.1f}%" for mean in means)])
    lines = [f"| {' | '.join(row)} |" for row in rows]
    crossed = [
        f"{way.name}: {', '.join(_crossing(each, way, rise) for rise in (LITTLE, MORE))}"
        for way in question.ways
        if each.frontiers[way.name] and "recall_03" in question.measures
    ]
    return [
        *lines,
        "",
        *([_fill(f"Rates at which general loss has risen: {'; '.join(crossed)}.")] if crossed else []),
        "",
    ]


def _crossing(each: Answer, way: Way, rise: float) -> str:
    known = sorted((rate_at(each.frontiers[way.name][pair], rise), pair[0]) for pair in each.pairs)
    rates = [rate for rate, _ in known]
    if not rates or any(map(math.isnan, rates)):
        return f"by {rise}: no figure"
    lowest, middle, highest = (
        _rate(float(f"{rate:.1e}")) for rate in (rates[0], statistics.median(rates), rates[-1])
    )
    return f"by {rise} at {middle} ({lowest} with {known[0][1]} to {highest} with {known[-1][1]})"


def _fill(text: str) -> str:
    return textwrap.fill(text, WIDTH, break_on_hyphens=False)


def draw(results: Sequence[Result], folder: Path, model: str = "") -> dict[str, Path]:
    """Draw the frontiers of the main questions, and return the files by question."""
    drawn = {}
    for each in answers(results, model):
        if each.question.pictured and each.is_known:
            folder.mkdir(parents=True, exist_ok=True)
            drawn[each.question.name] = folder / f"what-works-{each.question.name}.svg"
            _draw_frontiers(each, drawn[each.question.name])
    return drawn


def _draw_frontiers(each: Answer, path: Path) -> None:
    """A line for each way, from the untrained model through its rates, by the means over texts and seeds."""
    import matplotlib as mpl
    from matplotlib.figure import Figure

    is_asked = "answers_03" in each.question.measures
    learned, words = ("closed_book", "questions answered (%)") if is_asked else ("recall", "recall (%)")
    panels, ways = [(learned, words)], each.question.ways
    if "inside_03" in each.question.measures:
        panels = [
            (learned, "recall (%), from the second word of sentences"),
            ("inside_recall", "inside sentences (%)"),
        ]
    figure = Figure(figsize=(10 if len(panels) > 1 or len(ways) == 1 else 7, 4), layout="constrained")
    if len(ways) == 1:
        first, second = figure.subplots(1, 2)
        _draw_panel(first, each, *panels[0], is_first=True)
        losses = _means(each, ways[0], "unseen_loss")
        second.semilogx(losses.keys(), losses.values(), "o-", markersize=4)
        second.set_xticks([*losses], map(_rate, losses))
        second.minorticks_off()
        second.set_xlabel("learning rate")
        second.set_ylabel("loss on unseen text")
    else:
        for number, axes in enumerate(figure.subplots(1, len(panels), squeeze=False, sharey=True)[0]):
            _draw_panel(axes, each, *panels[number], is_first=not number)
    figure.legend(loc="outside right upper", fontsize=7)
    # The same results give the same bytes.
    with mpl.rc_context({"svg.hashsalt": "recipes", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def _draw_panel(axes: Any, each: Answer, learned: str, words: str, *, is_first: bool) -> None:
    import matplotlib as mpl

    for number, way in enumerate(each.question.ways):
        color = mpl.colormaps["turbo"](0.05 + 0.9 * number / len(each.question.ways))
        points = list(chain.from_iterable(each.frontiers[way.name][pair] for pair in each.pairs))
        points = [point for point in points if point.rise < math.inf]
        rates = [[point for point in points if point.rate == rate] for rate in (0.0, *each.question.rates_of(way))]
        rises = [np.mean([point.rise for point in same]) for same in rates if same]
        recalls = [100 * np.mean([figure_of(point, learned) for point in same]) for same in rates if same]
        axes.plot(rises, recalls, "o-", color=color, label=way.name if is_first else None, markersize=4)
        if not number:
            label = "untrained" if is_first else None
            axes.plot(rises[:1], recalls[:1], "kx", markersize=8, label=label, zorder=3)
    for rise in (LITTLE, MORE):
        axes.axvline(rise, color="0.8", linewidth=1, zorder=0)
    axes.set_xlabel("rise of the loss on general text (right: forgot more)")
    axes.set_ylabel(words)
