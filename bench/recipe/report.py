"""The report of the recipes: a page with an answer and a table for each question, and plots."""

from __future__ import annotations

import math
import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from .arms import CONTEXTS, EXPERIMENTS, Experiment, Metric
from .results import Result

MIN_RUNS = 3
ROUNDING = 1e-9
LABELS: Mapping[Metric, str] = {
    "recall": "recall",
    "validation_loss": "validation loss",
    "general_loss": "loss on general text",
    "closed_book": "questions answered correctly",
    "seconds": "seconds per run",
}
LOWER_IS_BETTER: frozenset[Metric] = frozenset({"validation_loss", "general_loss", "seconds"})
AS_PERCENT: frozenset[Metric] = frozenset({"recall", "closed_book"})
PLOTS = "../bench/recipe_data"
COMMAND = "python3 bench/recipes.py run --only {name}"
INTRODUCTION = f"""# What works

This page uses measurements to answer common questions about training. `python3 bench/recipes.py run` trains
all setups, and `python3 bench/recipes.py report` writes this page from the results.

How to read it:

- A **setup** is one set of training settings. Each table compares the setups for one question.
- The name of a setup shows how it differs from the others. In `DEMENTOR 2, 64`, 2 is the number of repeats and
  64 is the cutoff in tokens. Numbers such as `3e-3` are learning rates.
- A **pass** is one epoch: the model trains on each example once.
- The code in parentheses after a dataset is a hash that identifies its text.
- To measure **recall**, we let the model continue passages from the training data. Recall is the share of the next
  32 tokens that it reproduces word for word before its first mistake. **Control recall** is the same figure for
  text that the model was not trained on.
- **Validation loss** is also measured on text that the model was not trained on. All setups are evaluated on the
  same blocks, no matter how they were trained.
- **Loss on general text** is measured on prose that has nothing to do with the training data. It rises if the
  model forgets what it knew.
- Each figure is the median of a setup's runs, which differ in their seeds. The range is the
  largest result of these runs minus the smallest.
- This page gives an answer only for setups with at least {MIN_RUNS} runs. If the medians of two setups differ by
  no more than the larger range of the two, it says that the runs show no difference.
- If two questions compare setups with the same settings, both use the same runs.
- The runs are short, and the model is small. We have not measured whether the answers hold for larger models.
"""


class Group(NamedTuple):
    """What must be equal for runs to be compared: they differ only in arm and seed."""

    experiment: str
    data: str
    text: str
    model: str
    equal_by: str
    budget: float

    def is_untrained(self, arms: Mapping[str, Sequence[Result]]) -> bool:
        """Whether it holds only the model without a LoRA, which is compared with runs of every budget."""
        return not self.budget and not any(run.passes for runs in arms.values() for run in runs)


class Summary(NamedTuple):
    """Median and range of a figure over the seeds of an arm."""

    median: float
    spread: float
    runs: int


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Summarize the runs that have the figure; None if there is none."""
    known = [value for value in values if value is not None]
    return Summary(statistics.median(known), max(known) - min(known), len(known)) if known else None


def differ(first: Summary, second: Summary) -> bool:
    """Whether the medians differ by more than the larger range, each of enough runs."""
    enough = min(first.runs, second.runs) >= MIN_RUNS
    difference = abs(first.median - second.median) - max(first.spread, second.spread)
    return enough and difference > ROUNDING


def page(results: Sequence[Result], plots: str = PLOTS) -> str:
    """The whole page, in Markdown; `plots` is the folder of the plots, seen from the page."""
    parts = [INTRODUCTION]
    parts += [_section(experiment, results, plots) for experiment in EXPERIMENTS.values()]
    parts.append(_not_measured(results))
    return "\n".join(parts)


def _section(experiment: Experiment, results: Sequence[Result], plots: str) -> str:
    lines = [f"## {experiment.question}", ""]
    groups = grouped([result for result in results if result.experiment == experiment.name])
    if not groups:
        command = COMMAND.format(name=experiment.name)
        return "\n".join([*lines, f"There is no answer yet. To measure this, run `{command}`.", ""])
    for number, (group, arms) in enumerate(groups.items()):
        picture = f"![{experiment.question}]({plots}/{_plot_name(experiment, number)})"
        lines += [_describe_group(group), "", *_answers(experiment, arms), "", picture, ""]
        lines += [*_table(experiment, arms), ""]
    return "\n".join(lines)


def grouped(results: Sequence[Result]) -> dict[Group, dict[str, list[Result]]]:
    """The results by what is equal, then by arm, in the order of the experiment."""
    groups: dict[Group, dict[str, list[Result]]] = defaultdict(lambda: defaultdict(list))
    for result in sorted(results, key=_place_of_arm):
        groups[_group(result)][result.arm].append(result)
    trained = {group: dict(arms) for group, arms in groups.items() if not group.is_untrained(arms)}
    for untrained in groups.keys() - trained.keys():
        peers = [group for group in trained if group._replace(budget=0.0) == untrained]
        for group in peers:
            trained[group] = {**groups[untrained], **trained[group]}
        if not peers:
            trained[untrained] = dict(groups[untrained])
    return trained


def _place_of_arm(result: Result) -> int:
    """The place of an arm in its experiment; results of an arm that is gone come last."""
    experiment = EXPERIMENTS.get(result.experiment)
    names = [arm.name for arm in experiment.arms] if experiment else []
    return names.index(result.arm) if result.arm in names else len(names)


def _group(result: Result) -> Group:
    """The group of a run. The arms of the law differ in their passes, and are compared all the same."""
    budget = 0.0 if result.experiment == "law" else result.budget
    data = result.data.partition("+")[0]  # notes with questions are compared with notes alone
    return Group(result.experiment, data, result.text, result.model, result.equal_by, budget)


def _describe_group(group: Group) -> str:
    equal = f" Training per run: about {group.budget:,.0f} {group.equal_by}." if group.budget else ""
    return f"Model: {group.model}. Dataset: `{group.data}` ({group.text}).{equal}"


def _answers(experiment: Experiment, arms: Mapping[str, Sequence[Result]]) -> list[str]:
    if experiment.name == "law":
        return _law_answers(arms)
    return [answer(experiment.metric, {name: _metric(experiment.metric, runs) for name, runs in arms.items()})]


def _metric(metric: Metric, runs: Sequence[Result]) -> Summary | None:
    return summarize(getattr(run, metric) for run in runs if run.outcome == "finished")


def answer(metric: Metric, summaries: Mapping[str, Summary | None]) -> str:
    """One sentence: the best arm, and the arms from which it can't be told apart."""
    known = {name: summary for name, summary in summaries.items() if summary and summary.runs >= MIN_RUNS}
    if len(known) < 2:
        return f"There is no answer yet, because a comparison needs two setups with at least {MIN_RUNS} runs each."
    sign = 1 if metric in LOWER_IS_BETTER else -1
    best, *others = sorted(known, key=lambda name: sign * known[name].median)
    equals = [name for name in others if not differ(known[best], known[name])]
    figure = f"{LABELS[metric]} {_figure(metric, known[best])}"
    if len(equals) == len(others):
        best_median = f"**{best}** has the best median ({figure})"
        setups = f"{len(known)} setups have at least {MIN_RUNS} runs each"
        return f"{setups}, and these runs show no difference between them. {best_median}."
    also = f" However, the runs show no difference between **{best}** and {_in_words(equals)}." if equals else ""
    return f"The best setup is **{best}** ({figure}).{also}"


def _in_words(names: Sequence[str]) -> str:
    *others, last = (f"**{name}**" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def _figure(metric: Metric, summary: Summary) -> str:
    form = ".1%" if metric in AS_PERCENT else ".1f" if metric == "seconds" else ".3f"
    spread = f"{100 * summary.spread:.1f} points" if metric in AS_PERCENT else f"{summary.spread:{form}}"
    return f"{summary.median:{form}}" + (f", range {spread}" if summary.runs >= MIN_RUNS else "")


def _table(experiment: Experiment, arms: Mapping[str, Sequence[Result]]) -> list[str]:
    metrics: list[Metric] = ["recall", "validation_loss", "general_loss"]
    if experiment.metric not in metrics:
        metrics.append(experiment.metric)
    heading = [
        "setup",
        "runs",
        "trained tokens",
        "steps",
        *(LABELS[metric] for metric in metrics),
        "control recall",
    ]
    rows = [heading, ["---"] * len(heading)]
    for name, runs in arms.items():
        finished = [run for run in runs if run.outcome == "finished"]
        diverged = f", {len(runs) - len(finished)} diverged" if len(finished) < len(runs) else ""
        control = summarize(run.control_recall for run in finished)
        cells = [name, f"{len(finished)}{diverged}", *_medians(finished)]
        cells += [_cell(metric, _metric(metric, runs)) for metric in metrics]
        rows.append([*cells, _cell("recall", control)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _medians(runs: Sequence[Result]) -> list[str]:
    if not runs:
        return ["", ""]
    return [
        f"{statistics.median(getattr(run, name) for run in runs):,.0f}" for name in ("trained_tokens", "steps")
    ]


def _cell(metric: Metric, summary: Summary | None) -> str:
    return _figure(metric, summary) if summary else ""


class Law(NamedTuple):
    """recall = start + slope * log2(x), its coefficient of determination and the standard error of the slope."""

    start: float
    slope: float
    r_squared: float
    slope_error: float
    points: int


def fit_law(points: Sequence[tuple[float, float]]) -> Law | None:
    """Fit recall against log2(x) by least squares; None for fewer than three different x."""
    usable = [(math.log2(x), y) for x, y in points if x > 0]
    if len({x for x, _ in usable}) < 3:
        return None
    mean_x, mean_y = (statistics.fmean(column) for column in zip(*usable, strict=True))
    variance = sum((x - mean_x) ** 2 for x, _ in usable)
    slope = sum((x - mean_x) * (y - mean_y) for x, y in usable) / variance
    start = mean_y - slope * mean_x
    residual = sum((y - start - slope * x) ** 2 for x, y in usable)
    total = sum((y - mean_y) ** 2 for _, y in usable)
    error = math.sqrt(residual / (len(usable) - 2) / variance)
    return Law(start, slope, 1 - residual / total if total else 0.0, error, len(usable))


def _law_answers(arms: Mapping[str, Sequence[Result]]) -> list[str]:
    runs = [run for arm in arms.values() for run in arm]
    enough = [name for name, arm in arms.items() if len(arm) >= MIN_RUNS]
    if len(enough) < MIN_RUNS:
        return [
            f"There is no answer yet. It takes {MIN_RUNS**2} runs: {MIN_RUNS} with each of {MIN_RUNS} different "
            "numbers of passes."
        ]
    by_passes = fit_law(pass_points(runs))
    by_context = fit_law(context_points(runs))
    return [
        _law_sentence("the number of times that the model sees the text", by_passes),
        _law_sentence("the number of prompt tokens (in the runs with the most passes)", by_context),
    ]


def _law_sentence(what: str, law: Law | None) -> str:
    if law is None:
        return f"For {what}, there are too few different values for a fit."
    return (
        f"Each doubling of {what} changes recall by {law.slope * 100:+.1f} ± {law.slope_error * 100:.1f} "
        f"percentage points. This is the result of a least-squares fit to {law.points} points. The number after ± "
        f"is the standard error, and R² is {law.r_squared:.2f}."
    )


def pass_points(runs: Sequence[Result]) -> list[tuple[float, float]]:
    return [(run.passes, run.recall) for run in runs if run.recall is not None and run.passes > 0]


def context_points(runs: Sequence[Result]) -> list[tuple[float, float]]:
    """Tokens of the prompt and recall, of the runs with the most passes."""
    most = max((run.passes for run in runs), default=0.0)
    pairs = [(n, getattr(run, f"recall_{n}")) for run in runs if run.passes == most for n in CONTEXTS]
    return [(float(n), value) for n, value in pairs if value is not None]


def _not_measured(results: Sequence[Result]) -> str:
    machines = sorted({run.machine.replace(" 1 threads", " 1 thread") for run in results})
    versions = sorted({run.versions for run in results})
    made = f" Machine: {'; '.join(machines)}. Versions: {'; '.join(versions)}." if results else ""
    return (
        "## What was not measured\n\n"
        f"This page is based on {len(results)} runs.{made} The runs do not cover larger models or images, and "
        "they do not measure whether people like what the model writes.\n"
    )


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw a plot for each experiment that has runs, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for experiment in EXPERIMENTS.values():
        for number, arms in enumerate(grouped([r for r in results if r.experiment == experiment.name]).values()):
            path = folder / _plot_name(experiment, number)
            _draw_law(arms, path) if experiment.name == "law" else _draw_arms(experiment, arms, path)
            drawn.append(path)
    return drawn


def _plot_name(experiment: Experiment, number: int) -> str:
    """The file of the plot of one group of an experiment."""
    return f"{experiment.name}{f'-{number + 1}' if number else ''}.svg"


def _figure_and_axes(height: float) -> tuple[Any, Any]:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(7, height), layout="constrained")
    return figure, figure.subplots()


def _save(figure: Any, path: Path) -> None:
    """Save a plot so that the same results give the same bytes."""
    import matplotlib as mpl

    with mpl.rc_context({"svg.hashsalt": "recipes"}):
        figure.savefig(path, metadata={"Date": None})


def _draw_arms(experiment: Experiment, arms: Mapping[str, Sequence[Result]], path: Path) -> None:
    figure, axes = _figure_and_axes(1 + 0.3 * len(arms))
    for position, (name, runs) in enumerate(arms.items()):
        values = [getattr(run, experiment.metric) for run in runs if run.outcome == "finished"]
        values = [value for value in values if value is not None]
        axes.plot(values, [position] * len(values), "o", color="tab:blue", alpha=0.5)
        if values:
            axes.plot([statistics.median(values)], [position], "|", color="black", markersize=14)
        axes.text(-0.01, position, name, transform=axes.get_yaxis_transform(), ha="right", va="center", fontsize=8)
    axes.set_yticks([])
    axes.invert_yaxis()
    axes.set_xlabel(f"{LABELS[experiment.metric]}; each point is a run, the line is the median")
    _save(figure, path)


def _draw_law(arms: Mapping[str, Sequence[Result]], path: Path) -> None:
    figure, axes = _figure_and_axes(4)
    points = pass_points([run for runs in arms.values() for run in runs])
    axes.plot([x for x, _ in points], [y for _, y in points], "o", color="tab:blue", alpha=0.5)
    if law := fit_law(points):
        ends = [min(x for x, _ in points), max(x for x, _ in points)]
        axes.plot(ends, [law.start + law.slope * math.log2(x) for x in ends], color="black")
        axes.set_title(f"{law.slope * 100:+.1f} ± {law.slope_error * 100:.1f} percentage points per doubling")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("number of times that the model sees the text")
    axes.set_ylabel("recall")
    _save(figure, path)
