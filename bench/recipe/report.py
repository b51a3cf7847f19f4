"""The report of the recipes: a page with an answer and a table for each question, and plots."""

from __future__ import annotations

import statistics
import textwrap
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from itertools import permutations
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from ...train_utils import format_count
from .arms import CONTEXTS, EXPERIMENTS, Experiment, Metric
from .comparison import MIN_RUNS, ROUNDING, compare
from .results import Result

LABELS: Mapping[Metric, str] = {
    "recall": "recall",
    "validation_loss": "validation loss",
    "general_loss": "loss on general text",
    "closed_book": "questions answered correctly",
    "seconds": "seconds per run",
}
LOWER_IS_BETTER: frozenset[Metric] = frozenset({"validation_loss", "general_loss", "seconds"})
AS_PERCENT: frozenset[Metric] = frozenset({"recall", "closed_book"})
LITTLE = 0.1
"""A rise of the loss on general text that counts as little forgotten."""
PLOTS = "../bench/recipe_data"
COMMAND = "python3 bench/recipes.py run --only {name}"
INTRODUCTION = f"""# What works

How much does a model learn of a text, and how much does it forget? This page compares {{count}} short runs.
`python3 bench/recipes.py run` makes the runs, and `python3 bench/recipes.py report` writes this page from their
results.

{{limits}}

{{sizes}}

How to read the tables:

- A **setup** is one set of training settings. Its name shows how it differs from the others. In
  `DEMENTOR 2, 64`, 2 is the number of repeats and 64 is the cutoff in tokens. Numbers such as `3e-3` are learning
  rates. *Untrained* is the model without a LoRA.
- **Recall** is what was learned by heart. The model continues passages from the training data. Recall is the share
  of the next 32 tokens that it reproduces word for word before its first mistake.
- **Loss on general text** shows what was forgotten. It is measured on prose that has nothing to do with the
  training data, and rises if the model forgets. **Validation loss** is measured on unseen text of the same kind as
  the training data. All setups are measured on the same passages and blocks.
- Each figure is the mean of a setup's runs, which differ in their seeds. The lowest and the highest run are in
  parentheses. Setups with the same settings share their runs. Tables of single runs, which show no difference,
  are left out.
- A setup is **better** than another if one of two differences is told apart in its favor and the other one is
  not against it: what it learned, and what it forgot. If it learned more and forgot more, neither is better.
- Two setups are **told apart** if the 95% interval of their difference excludes 0. This takes at least {MIN_RUNS}
  runs of each. Runs with the same seed are paired. The interval is Student's, and corrected for all pairs and both
  measures of a table. A pair's variance is its own or that of the whole table, whichever is larger. With
  `python3 bench/recipes.py null`, you can simulate tables without any difference: this rule claims one in at most
  5% of them. With three runs each, it overlooks most differences of 15 points. The more setups a table has, the
  larger the differences must be.
"""
LIMITS = (
    "**What these runs can't tell you.** The model is small: SmolLM2-135M-Instruct, from a 4-bit GGUF file "
    "(Q4_1) that was converted to bfloat16. The data are tiny, as the next table shows. {trained} runs trained "
    "on the story. In {worse} of them, the model predicts unseen text of the story worse than the untrained "
    "model does (validation loss above {validation:.3f}). The {heart} runs with a recall of 40% or more have a "
    "loss on general text of {lowest:.2f} or more (untrained: {general:.2f}). {mild} runs raise this loss by at "
    "most {little}, and their recall is at most {best:.0%}. So most of these runs show how a model memorizes "
    "while it is damaged. Larger models, longer texts and what people think of the replies were not measured."
)


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
    """Mean and range of a figure over the seeds of an arm."""

    mean: float
    lowest: float
    highest: float
    runs: int


def summarize(values: Iterable[float | None]) -> Summary | None:
    """Summarize the runs that have the figure; None if there is none."""
    known = [value for value in values if value is not None]
    return Summary(statistics.fmean(known), min(known), max(known), len(known)) if known else None


def page(
    results: Sequence[Result], plots: str = PLOTS, sizes: Mapping[str, Mapping[str, int]] | None = None
) -> str:
    """The whole page, in Markdown; `plots` is the folder of the plots, seen from the page."""
    machines = sorted({run.machine.replace(" 1 threads", " 1 thread") for run in results})
    made = f"{'; '.join(machines)}; {'; '.join(sorted({run.versions for run in results}))}"
    parts = [
        INTRODUCTION.format(
            count=len(results),
            limits=_limits(results),
            sizes="\n".join([*_size_table(sizes or {}), "", f"Machine and versions: {made}."]),
        )
    ]
    parts += [_section(experiment, results, plots) for experiment in EXPERIMENTS.values()]
    return "\n".join(parts)


def _limits(results: Sequence[Result]) -> str:
    """What the runs on the story say about all of them; a run that several tables share counts once."""
    runs = {(r.budget, r.passes, r.rank, r.seconds, r.recall): r for r in results if r.data == "story"}.values()
    zero = next((run for run in runs if not run.passes), None)
    trained = [run for run in runs if run.passes and run.outcome == "finished"]
    heart = [run.general_loss for run in trained if run.recall >= 0.4]
    if zero is None or not heart:
        return "There are too few runs on the story to say."
    mild = [run.recall for run in trained if run.general_loss <= zero.general_loss + LITTLE]
    text = LIMITS.format(
        trained=len(trained), worse=sum(run.validation_loss > zero.validation_loss for run in trained),
        validation=zero.validation_loss, general=zero.general_loss, heart=len(heart), lowest=min(heart),
        mild=len(mild), best=max(mild, default=0.0), little=LITTLE,
    )  # fmt: skip
    return textwrap.fill(text, 115, break_on_hyphens=False)


def _size_table(sizes: Mapping[str, Mapping[str, int]]) -> list[str]:
    if not sizes:
        return []
    names = list(next(iter(sizes.values())))
    rows = [["dataset", *names], ["---"] * (len(names) + 1)]
    rows += [[f"`{data}`", *(f"{size[name]:,}" for name in names)] for data, size in sizes.items()]
    return [f"| {' | '.join(row)} |" for row in rows]


def _section(experiment: Experiment, results: Sequence[Result], plots: str) -> str:
    lines = [f"## {experiment.question}", ""]
    groups = grouped([result for result in results if result.experiment == experiment.name])
    if not groups:
        command = COMMAND.format(name=experiment.name)
        return "\n".join([*lines, f"There is no answer yet. To measure this, run `{command}`.", ""])
    if experiment.flaw:
        return "\n".join([*lines, f"**These runs can't answer the question.** {experiment.flaw}", ""])
    for number, (group, arms) in enumerate(groups.items()):
        arms = with_untrained(group, arms, results)
        if number and not has_repeats(arms):
            continue
        answers = [*_answers(experiment, arms), ""]
        picture = [f"![{experiment.question}]({plots}/{_plot_name(experiment, number)})", ""]
        lines += [_describe_group(group), "", *answers, *(picture if has_repeats(arms) else [])]
        lines += [*_table(experiment, arms), ""]
    return "\n".join(lines)


def has_repeats(arms: Mapping[str, Sequence[Result]]) -> bool:
    """Whether a trained arm has enough runs for a claim: a plot of single runs shows no more than their table."""
    return any(len(runs) >= MIN_RUNS and runs[0].passes for runs in arms.values())


def with_untrained(
    group: Group, arms: Mapping[str, Sequence[Result]], results: Sequence[Result]
) -> dict[str, Sequence[Result]]:
    """The arms of a table, and before them the model without a LoRA, in whatever experiment it was measured."""
    if any(not run.passes for runs in arms.values() for run in runs):
        return dict(arms)
    same = (group.data, group.text, group.model)
    zero = [run for run in results if not run.passes and (run.data.partition("+")[0], run.text, run.model) == same]
    runs = list({run.seed: run for run in zero}.values())
    return {"untrained": runs, **arms} if runs else dict(arms)


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
    equal = f", about {group.budget:,.0f} {group.equal_by} per run" if group.budget else ""
    return f"{group.model}, `{group.data}`{equal}:"


def _answers(experiment: Experiment, arms: Mapping[str, Sequence[Result]]) -> list[str]:
    if experiment.name == "law":
        return _law_answers(arms)
    return [answer(experiment.metric, arms)]


def _metric(metric: Metric, runs: Sequence[Result]) -> Summary | None:
    return summarize(getattr(run, metric) for run in runs if run.outcome == "finished")


def figures_by_seed(metric: Metric, arms: Mapping[str, Sequence[Result]]) -> dict[str, dict[int, float]]:
    """A figure of all trained runs, by arm and seed; a diverged run has none."""
    return {
        name: {run.seed: value for run in runs if (value := getattr(run, metric)) is not None}
        for name, runs in arms.items()
        if any(run.passes for run in runs)
    }


def answer(metric: Metric, arms: Mapping[str, Sequence[Result]]) -> str:
    """Which setups are better than which, which ones traded, and what could not have been told apart."""
    learned = compare(figures_by_seed(metric, arms), measures=2)
    forgot = compare(figures_by_seed("general_loss", arms), measures=2)
    if learned is None or forgot is None:
        return f"There is no answer yet, because a comparison needs two setups with at least {MIN_RUNS} runs each."
    toward = -1 if metric in LOWER_IS_BETTER else 1
    better: dict[str, list[str]] = defaultdict(list)
    traded = 0
    for first, second in permutations(learned.names, 2):
        gain, kept = toward * learned.sign(first, second), -forgot.sign(first, second)
        not_against = toward * learned.mean(first, second) > -ROUNDING and forgot.mean(first, second) < ROUNDING
        if (gain > 0 or kept > 0) and not_against:
            better[first].append(second)
        traded += gain > 0 and forgot.mean(first, second) >= ROUNDING
    pairs = len(learned.names) * (len(learned.names) - 1) // 2
    if not (learned.means.any() or forgot.means.any()):
        return f"The setups have the same results, seed by seed ({_in_words(list(learned.names))})."
    sentences = [f"**{first}** is better than {_in_words(others)}." for first, others in better.items()]
    if not better:
        sentences = [f"No setup is shown to be better than another ({format_count(pairs, 'pair')})."]
    if traded:
        sentences.append(
            f"In {traded} of {format_count(pairs, 'pair')}, one setup learned more but also forgot more."
        )
    limits = " or ".join(
        _amount(*each) for each in ((metric, learned.smallest), ("general_loss", forgot.smallest))
    )
    sentences.append(f"Differences of less than about {limits} can't be told apart here.")
    return " ".join([*sentences, *_mild(metric, arms)])


def real_tables(results: Sequence[Result]) -> dict[str, list[Any]]:
    """The figures of every table that compares setups, by measure, as setups by seeds."""
    tables = {}
    for experiment in EXPERIMENTS.values():
        for group, arms in grouped([r for r in results if r.experiment == experiment.name]).items():
            measures: tuple[Metric, Metric] = (experiment.metric, "general_loss")
            figures = [
                np.array(
                    [
                        list(by_seed.values())
                        for by_seed in figures_by_seed(metric, arms).values()
                        if len(by_seed) == MIN_RUNS
                    ]
                )
                for metric in measures
            ]
            if experiment.name != "law" and len(figures[0]) > 1 and figures[0].std(axis=1).any():
                tables[f"{experiment.name}, {group.data}"] = figures
    return tables


def _amount(metric: Metric, value: float) -> str:
    unit = (
        f"{100 * value:.1f} points"
        if metric in AS_PERCENT
        else f"{value:.1f}"
        if metric == "seconds"
        else f"{value:.2f}"
    )
    return f"{unit} ({LABELS[metric]})"


def _mild(metric: Metric, arms: Mapping[str, Sequence[Result]]) -> list[str]:
    """The setups that forget little, and the most that one of them learned by heart."""
    means = {name: (_metric("general_loss", runs), _metric("recall", runs)) for name, runs in arms.items()}
    zero = next((means[name][0] for name, runs in arms.items() if runs and not runs[0].passes), None)
    if metric != "recall" or zero is None:
        return []
    trained = {name: pair for name, pair in means.items() if all(pair) and arms[name][0].passes}
    mild = {n: recall.mean for n, (loss, recall) in trained.items() if loss.mean <= zero.mean + LITTLE}
    share = f"{len(mild)} of {len(trained)}" + (
        f", with a recall of at most {max(mild.values()):.1%}" if mild else ""
    )
    return [f"Setups that raise the loss on general text by at most {LITTLE}: {share}."]


def _in_words(names: Sequence[str]) -> str:
    *others, last = (f"**{name}**" for name in names)
    return f"{', '.join(others)} and {last}" if others else last


def _figure(metric: Metric, summary: Summary) -> str:
    form = ".1f" if metric in AS_PERCENT or metric == "seconds" else ".3f"
    factor, unit = (100, "%") if metric in AS_PERCENT else (1, "")
    text = f"{factor * summary.mean:{form}}{unit}"
    if summary.runs < 2 or summary.highest == summary.lowest:
        return text
    return f"{text} ({factor * summary.lowest:{form}}-{factor * summary.highest:{form}})"


def _table(experiment: Experiment, arms: Mapping[str, Sequence[Result]]) -> list[str]:
    metrics: list[Metric] = ["recall", "validation_loss", "general_loss"]
    if experiment.metric not in metrics:
        metrics.append(experiment.metric)
    heading = ["setup", "runs", "steps", *(LABELS[metric] for metric in metrics)]
    rows = [heading, ["---"] * len(heading)]
    for name, runs in arms.items():
        finished = [run for run in runs if run.outcome == "finished"]
        diverged = f", {len(runs) - len(finished)} diverged" if len(finished) < len(runs) else ""
        steps = f"{statistics.median(run.steps for run in finished):,.0f}" if finished else ""
        cells = [name, f"{len(finished)}{diverged}", steps]
        rows.append([*cells, *(_cell(metric, _metric(metric, runs)) for metric in metrics)])
    return [f"| {' | '.join(row)} |" for row in rows]


def _cell(metric: Metric, summary: Summary | None) -> str:
    return _figure(metric, summary) if summary else ""


class Law(NamedTuple):
    """recall = top / (1 + (half / passes) ** steepness), and how far runs are from it (root mean square)."""

    top: float
    half: float
    steepness: float
    error: float

    def recall(self, passes: float) -> float:
        return self.top / (1 + (self.half / passes) ** self.steepness)


def fit_law(points: Sequence[tuple[float, float]]) -> Law | None:
    """Fit a logistic curve of log(passes) by least squares, on a grid; None for fewer than four passes."""
    usable = np.array([point for point in points if point[0] > 0])
    if len(usable) == 0 or len(set(usable[:, 0])) < 4:
        return None
    passes, recall = usable.T
    laws = []
    for half in np.geomspace(passes.min() / 2, passes.max() * 2, 121):
        for steepness in np.arange(0.5, 6.01, 0.1):
            shape = 1 / (1 + (half / passes) ** steepness)
            top = min(1.0, float(shape @ recall / (shape @ shape)))
            laws.append(
                Law(top, float(half), float(steepness), float(np.sqrt(np.mean((top * shape - recall) ** 2))))
            )
    return min(laws, key=lambda law: law.error)


def _law_answers(arms: Mapping[str, Sequence[Result]]) -> list[str]:
    runs = [run for arm in arms.values() for run in arm]
    enough = [name for name, arm in arms.items() if len(arm) >= MIN_RUNS and arm[0].passes]
    law = fit_law(pass_points(runs))
    if len(enough) < 4 or law is None:
        return [f"There is no answer yet. It takes {MIN_RUNS} runs with each of 4 different numbers of passes."]
    steps = [
        f"{recall.mean:.1%} (loss on general text {loss.mean:.2f})"
        for name in enough
        if (recall := _metric("recall", arms[name])) and (loss := _metric("general_loss", arms[name]))
    ]
    contexts = ", ".join(f"{mean:.0%} with {n}" for n, mean in context_means(runs))
    return [
        "Recall rises slowly, then fast, then slowly again, and the model forgets as it learns. With "
        f"{', '.join(enough)}, recall is {', '.join(steps)}. A logistic curve with three fitted values (top "
        f"{law.top:.0%}, half of it after {law.half:.1f} passes, steepness {law.steepness:.1f}) misses the runs "
        f"by {100 * law.error:.1f} points (root mean square). It describes these runs and predicts no others. "
        f"After the most passes, recall also depends on the length of the prompt: {contexts} tokens."
    ]


def pass_points(runs: Sequence[Result]) -> list[tuple[float, float]]:
    return [(run.passes, run.recall) for run in runs if run.recall is not None and run.passes > 0]


def context_means(runs: Sequence[Result]) -> list[tuple[int, float]]:
    """Tokens of the prompt and mean recall, of the runs with the most passes."""
    most = max((run.passes for run in runs), default=0.0)
    values = {n: [getattr(run, f"recall_{n}") for run in runs if run.passes == most] for n in CONTEXTS}
    return [
        (n, statistics.fmean(known)) for n, each in values.items() if (known := [v for v in each if v is not None])
    ]


def draw(results: Sequence[Result], folder: Path) -> list[Path]:
    """Draw a plot for each experiment that has runs, and return their files."""
    folder.mkdir(parents=True, exist_ok=True)
    drawn = []
    for experiment in EXPERIMENTS.values():
        groups = grouped([result for result in results if result.experiment == experiment.name])
        for number, (group, arms) in enumerate(groups.items()):
            path = folder / _plot_name(experiment, number)
            arms = with_untrained(group, arms, results)
            if not has_repeats(arms):
                continue
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

    with mpl.rc_context({"svg.hashsalt": "recipes", "svg.fonttype": "none"}):
        figure.savefig(path, metadata={"Date": None})


def _draw_arms(experiment: Experiment, arms: Mapping[str, Sequence[Result]], path: Path) -> None:
    """Learned against forgotten: each point is a run."""
    figure, axes = _figure_and_axes(4 + 0.12 * max(0, len(arms) - 16))
    colors = matplotlib_colors(len(arms))
    for color, (name, runs) in zip(colors, arms.items(), strict=True):
        points = [(run.general_loss, getattr(run, experiment.metric)) for run in runs if run.outcome == "finished"]
        known = [(loss, value) for loss, value in points if loss is not None and value is not None]
        style = "x" if runs and not runs[0].passes else "o"
        axes.plot([x for x, _ in known], [y for _, y in known], style, color=color, label=name, markersize=5)
    axes.set_xlabel("loss on general text (further right: forgot more)")
    axes.set_ylabel(LABELS[experiment.metric])
    figure.legend(loc="outside right upper", fontsize=7)
    _save(figure, path)


def matplotlib_colors(count: int) -> list[Any]:
    from matplotlib import colormaps

    return [colormaps["turbo"](0.05 + 0.9 * n / max(1, count - 1)) for n in range(count)]


def _draw_law(arms: Mapping[str, Sequence[Result]], path: Path) -> None:
    figure, axes = _figure_and_axes(4)
    points = pass_points([run for runs in arms.values() for run in runs])
    axes.plot([x for x, _ in points], [y for _, y in points], "o", color="tab:blue", alpha=0.5)
    if law := fit_law(points):
        xs = np.geomspace(min(x for x, _ in points), max(x for x, _ in points), 50)
        axes.plot(xs, [law.recall(x) for x in xs], color="black")
    axes.set_xscale("log", base=2)
    axes.set_xlabel("number of times that the model sees the text")
    axes.set_ylabel("recall")
    _save(figure, path)
