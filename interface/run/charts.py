"""Charts: slice maps of Check, the planned learning rate, and lines over the steps of a run."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape
from itertools import cycle, groupby
from typing import TYPE_CHECKING

from ...core.jobs import EvaluationDone, RecallMeasured, Step
from ...records.report import Mark, draw_curve
from ...records.report import charts as svg
from ...schedulers import Phase, ScheduleSteps, describe_phases, lr_multipliers
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, format_count, format_digits, interval_steps, plural
from ..base import markup

if TYPE_CHECKING:
    from ...data.text import SliceMap

# A slice map is a strip with lanes, each with its top and height. Texts with more blocks than bars are drawn as
# the heat lane alone, which needs a few hundred rectangles for a whole book.
MAP_WIDTH, MAP_HEIGHT = 640, 62
MAX_MAPS, MAX_BARS = 6, 300
LANES = {"block": (4, 16), "dementor": (4, 16), "overlap": (22, 12)}
HEAT_LANE = (40, 14)
BAR_LEGEND = (("#2f74c0", "blocks", {"block", "dementor"}), ("#c98a10", "overlap blocks", {"overlap"}))
MAX_PLAN_MARKS = 100  # ends of epochs, or checkpoints; of more checkpoints none is drawn
SMALL_WIDTH, SMALL_HEIGHT = 200, 46
Series = list[tuple[int, float]]
WIDTH, HEIGHT, LEFT, BASE = 640, 130, 52, 108
CHAR_WIDTH = 7  # of a number at the axis
MAX_POINTS, MAX_DOTS, STEPS_PER_POINT = 240, 40, 25
COLORS = ("#2f74c0", "#c98a10", "#2f9e5b", "#7a4fb5", "#cf3f3f", "#3a8f8f")


def slice_maps(named_maps: Sequence[tuple[str, SliceMap]]) -> str:
    """The first few texts as strips, each with a sentence, and one legend for all."""
    if not named_maps:
        return ""
    named_maps = named_maps[:MAX_MAPS]
    parts = []
    for name, sliced in named_maps:
        caption = markup.paragraph(f"{name}: {sliced.words(sliced.trained_tokens)}. {sliced.proof}.", quiet=True)
        parts.append(f"{caption}{slice_map_svg(sliced)}")
    maps = [sliced for _, sliced in named_maps]
    kinds = {bar.kind for sliced in maps if len(sliced.bars) <= MAX_BARS for bar in sliced.bars}
    entries = [(color, label) for color, label, members in BAR_LEGEND if kinds & members]
    entries.append(("#7a4fb5", "how often the model sees each part (stronger color: more often)"))
    if any(sliced.hard_cuts for sliced in maps):
        entries.append(("#cf3f3f", "hard cuts"))
    return f'{"".join(parts)}<p class="tp-quiet tp-key">{markup.legend(entries)}</p>'


def slice_map_svg(sliced: SliceMap) -> str:
    """Draw a text as a strip: blocks, overlap blocks, hard cuts, and how often each part is seen."""

    def segment(start: float, end: float, lane: tuple[int, int], title: str, **attributes: str) -> str:
        width = max(0.8, MAP_WIDTH * (end - start) - 0.4)
        return svg.bar(float(MAP_WIDTH * start), lane[0], width, lane[1], title, **attributes)

    parts = []
    for n, bar in enumerate(sliced.bars if len(sliced.bars) <= MAX_BARS else ()):
        css_class = f"tp-{bar.kind} tp-{'even' if n % 2 else 'odd'}"
        parts.append(segment(bar.start, bar.end, LANES[bar.kind], f"{bar.kind} {n + 1}", class_=css_class))
    # Neighboring columns with the same count become one rectangle.
    columns, start = len(sliced.seen_along), 0
    highest = max(sliced.seen_along, default=0.0) or 1.0
    for times, group in groupby(sliced.seen_along):
        end = start + len(list(group))
        look = {"class_": "tp-heat", "fill_opacity": f"{0.08 + 0.92 * times / highest:.2f}"}
        title = f"seen {times:g} {plural(times, 'time')}"
        parts.append(segment(start / columns, end / columns, HEAT_LANE, title, **look))
        start = end
    for position in sliced.hard_cuts[:: max(1, len(sliced.hard_cuts) // MAX_BARS)]:
        parts.append(svg.vertical_line(float(MAP_WIDTH * position), 0, 58, "tp-cut", "hard cut"))
    counts = (
        format_count(sliced.blocks, "block"),
        format_count(sliced.overlaps, "overlap block"),
        format_count(sliced.parts, "section"),
    )
    return svg.picture(MAP_WIDTH, MAP_HEIGHT, "tp-map", ", ".join(counts), parts)


def loss_curve(
    steps: Sequence[Step],
    rates: Sequence[float],
    marks: Sequence[Mark],
    evaluations: Sequence[EvaluationDone],
    words: tuple[str, str],
) -> str:
    """The loss curve with its legend; `words` name the learning rate and the marks, empty for none."""
    # The colors are those that style.py gives to the lines of the curve.
    colors = zip(("#2f74c0", "#7fa6d6", "#c98a10", "#2f9e5b"), ("smoothed loss", "loss", *words), strict=True)
    legend = {color: label for color, label in colors if label}
    legend |= {"#8a3fb0": "validation loss"} if evaluations else {}
    return markup.curve(draw_curve(steps, rates, marks, evaluations), legend)


def planned_rates(settings: TrainingSettings, plan: StepPlan) -> tuple[list[Phase], list[float]]:
    """The phases of the schedule, and the learning rate of each step."""
    phases = settings.learning.phases(plan)
    return phases, [settings.learning.learning_rate * m for m in lr_multipliers(phases, plan.steps)]


def lr_plan_html(settings: TrainingSettings, plan: StepPlan) -> str:
    """The planned learning rate, with the ends of the epochs and the checkpoints, a legend, and its phases."""
    saving, (phases, rates) = settings.saving, planned_rates(settings, plan)
    marks = []
    ends = ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:MAX_PLAN_MARKS]
    for number, step in enumerate(ends, start=1):
        label = f"end of epoch {number}" if step % plan.steps_per_epoch == 0 else "end of the run"
        marks.append(Mark(step, label + (", checkpoint" if saving.save_each_epoch else "")))
    every = interval_steps(saving.save_every, plan.steps)
    if every and plan.steps // every <= MAX_PLAN_MARKS:
        marks += [Mark(step, "checkpoint") for step in range(every, plan.steps + 1, every)]
    green = "end of an epoch" + (" (with a checkpoint)" if saving.save_each_epoch else "")
    green += ", or a checkpoint" if saving.save_every else ""
    curve = markup.curve(draw_curve((), rates, marks), {"#c98a10": "planned learning rate", "#2f9e5b": green})
    return curve + markup.paragraph(f"{settings.learning.schedule}: {describe_phases(phases)}.", quiet=True)


def small_lr_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw a small chart of the planned learning rate, with the ends of the epochs."""
    phases, rates = planned_rates(settings, plan)
    x = svg.scale(0, max(1, len(rates) - 1), 0, SMALL_WIDTH)
    y = svg.scale(0, max(rates) or 1.0, 42, 6)
    ends = ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:40]
    epochs = [svg.vertical_line(SMALL_WIDTH * step / len(rates), 4, 42) for step in ends]
    line = svg.polyline((x(n), y(rates[n])) for n in range(0, len(rates), max(1, len(rates) // 120)))
    label = f"{settings.learning.schedule}: {describe_phases(phases)}"
    look = {"title": label, "preserveAspectRatio": "none"}
    return svg.picture(SMALL_WIDTH, SMALL_HEIGHT, "tp-small", label, [*epochs, line], **look)


def run_charts(
    steps: Sequence[Step], evaluations: Sequence[EvaluationDone], recalls: Sequence[RecallMeasured]
) -> str:
    """All charts of a run that have data."""
    # Divide the run into at most MAX_POINTS intervals, with a sample of the steps of each.
    length = max(1, math.ceil(len(steps) / MAX_POINTS))
    every = max(1, length // STEPS_PER_POINT)
    intervals = [steps[n : n + length : every] for n in range(0, len(steps), length)]
    known = [recall for recall in recalls if recall.learned.passages]  # none where preferences are learned
    norms = ((i[-1].step, [s.gradient_norm for s in i if s.gradient_norm is not None]) for i in intervals)
    charts: dict[str, Mapping[str, Series]] = {
        "Loss on each dataset": _loss_by_dataset(intervals),
        "Validation loss on each dataset": _loss_by_dataset([[e] for e in evaluations]),
        "Validation perplexity": {"perplexity": [(e.step, e.perplexity) for e in evaluations]},
        "Validation: tokens predicted correctly (%)": {
            "right": [(e.step, 100 * e.accuracy) for e in evaluations if not e.pairs]
        },
        "Preferences followed (%)": {
            "training data": _preference(intervals, "preferred", 100),
            "validation": [(e.step, 100 * e.accuracy) for e in evaluations if e.pairs],
        },
        "Margin of the preferred reply": {"margin": _preference(intervals, "margin")},
        "Log probability of a token": {
            f"{side} replies": _preference(intervals, side) for side in ("chosen", "rejected")
        },
        "Distance of chosen replies from the base": {"distance": _preference(intervals, "distance")},
        "Context gain": {
            "context gain": [(e.step, e.context_gain) for e in evaluations if e.context_gain is not None]
        },
        "Recall (%)": {
            "training data": [(r.step, 100 * r.learned.recall) for r in known],
            "unseen text": [(r.step, 100 * r.control.recall) for r in recalls if r.control],
        },
        "Loss on training, unseen and general text": {
            "training data": [(r.step, r.learned.loss) for r in known],
            "unseen text": [(r.step, r.control.loss) for r in recalls if r.control],
            "general text": [(r.step, r.general_loss) for r in recalls if r.general_loss is not None],
        },
        "Gradient norm": {
            "gradient norm": [(step, sum(values) / len(values)) for step, values in norms if values]
        },
        "Learning rate used": {"learning rate": [(i[-1].step, i[-1].learning_rate) for i in intervals]},
    }
    epoch = svg.steps_per_epoch(steps)
    return "".join(line_chart(title, series, epoch) for title, series in charts.items())


def _preference(intervals: Sequence[Sequence[Step]], name: str, scale: float = 1) -> Series:
    """The mean of a figure of preferences in each interval."""
    means = [(i[-1].step, [s.preferences[name] for s in i if name in s.preferences]) for i in intervals]
    return [(step, scale * sum(values) / len(values)) for step, values in means if values]


def _loss_by_dataset(intervals: Sequence[Sequence[Step | EvaluationDone]]) -> dict[str, Series]:
    """The mean loss of each dataset in each interval."""
    series: dict[str, Series] = {}
    for interval in intervals:
        for name in dict.fromkeys(name for event in interval for name in event.by_source):
            losses = [event.by_source[name] for event in interval if name in event.by_source]
            series.setdefault(name, []).append((interval[-1].step, sum(losses) / len(losses)))
    return series


def line_chart(title: str, series: Mapping[str, Series], epoch: float = 0.0) -> str:
    """Draw lines over the steps (`epoch` of them are an epoch), under one title; empty without finite values."""
    finite = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    lines = {name: points for name, points in finite.items() if points}
    if not lines:
        return ""
    several = len(lines) > 1
    if all(len(points) == 1 for points in lines.values()):
        # A chart of one point says less than a sentence.
        measured = "; ".join(
            f"{name + ' ' if several else ''}{format_digits(value)} at step {step}"
            for name, ((step, value),) in lines.items()
        )
        return markup.paragraph(f"{title}, measured once so far: {measured}", quiet=True)
    steps, values = zip(*(point for points in lines.values() for point in points), strict=True)
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    left = max(LEFT, *(CHAR_WIDTH * len(format_digits(value)) + 10 for value in (low, high)))
    x = svg.scale(first, max(last, first + 1), left, WIDTH - 12)
    y = svg.scale(low, high, BASE, 10)
    parts = [*svg.value_axis(sorted({low, high}), y, left, WIDTH - 8, format_digits)]
    parts += svg.step_axis(sorted({first, last}), x, HEIGHT - 6, epoch)
    colors = list(zip(cycle(COLORS), lines, strict=False))
    for color, name in colors:
        points = lines[name]
        parts.append(svg.polyline(((x(step), y(value)) for step, value in points), style=f"stroke:{color}"))
        # A line of one point is invisible, so its dot is not.
        css_class = "tp-hover" if len(points) > 1 else "tp-point"
        for step, value in points[:: max(1, len(points) // MAX_DOTS)]:
            tooltip = f"step {step}: {name} {value:.4g}"
            parts.append(svg.dot(x(step), y(value), 5, css_class, tooltip, style=f"color:{color}"))
    ends = "; ".join(f"{name} from {p[0][1]:.4g} to {p[-1][1]:.4g}" for name, p in lines.items())
    chart = svg.picture(WIDTH, HEIGHT, "tp-chart", f"{title}: {ends}", parts)
    legend = markup.legend(colors) if several else ""
    return f'<p class="tp-quiet tp-key"><span>{escape(title)}</span> {legend}</p>{chart}'
