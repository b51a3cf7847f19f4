"""Line charts of a run: loss per dataset, gradient norm, learning rate, and any other lines over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import cycle
from typing import TYPE_CHECKING

from ...core.jobs import EvaluationDone, RecallMeasured, Step
from ...records.report import Mark, draw_curve, steps_per_epoch
from ...records.report import charts as svg
from ...schedulers import Phase, ScheduleSteps, describe_phases, lr_multipliers
from ...settings.definitions import TrainingSettings
from ...train_utils import StepPlan, format_count, format_digits, interval_steps, plural
from ..base import markup

if TYPE_CHECKING:
    from ...data.text import Bar, SliceMap

MAP_WIDTH = 640
MAX_BARS = 300
LANES = {"block": (4, 16), "dementor": (4, 16), "overlap": (22, 12)}
HEAT_LANE = (40, 14)
BAR_LEGEND = (("#2f74c0", "blocks", {"block", "dementor"}), ("#c98a10", "overlap blocks", {"overlap"}))


def slice_map_svg(sliced: SliceMap) -> str:
    """Draw a text as a strip: blocks, overlap blocks, hard cuts, and how often each part is seen."""
    counts = (
        format_count(sliced.blocks + sliced.windows, "block"),
        format_count(sliced.overlaps, "overlap block"),
        format_count(sliced.sections, "section"),
    )
    parts = [*_bars(_visible_bars(sliced)), *_heat(sliced), *_cuts(sliced.hard_cuts)]
    return svg.picture(MAP_WIDTH, 62, "tp-map", ", ".join(counts), parts)


def legend_entries(maps: Sequence[SliceMap]) -> Iterator[tuple[str, str]]:
    """The legend of these slice maps, for the kinds that they contain."""
    kinds = {bar.kind for sliced in maps for bar in _visible_bars(sliced)}
    yield from ((color, label) for color, label, members in BAR_LEGEND if kinds & members)
    yield "#7a4fb5", "how often the model sees each part (stronger color: more often)"
    if any(sliced.hard_cuts for sliced in maps):
        yield "#cf3f3f", "hard cuts"


def _visible_bars(sliced: SliceMap) -> Sequence[Bar]:
    return sliced.bars if len(sliced.bars) <= MAX_BARS else ()


def _bars(bars: Sequence[Bar]) -> Iterator[str]:
    for n, bar in enumerate(bars):
        css_class = f"tp-{bar.kind} tp-{'even' if n % 2 else 'odd'}"
        yield _segment(bar.start, bar.end, LANES[bar.kind], f"{bar.kind} {n + 1}", class_=css_class)


def _heat(sliced: SliceMap) -> Iterator[str]:
    """Neighboring cells with the same count become one rectangle, so a whole book needs a few hundred at most."""
    highest, columns = max(sliced.seen_along, default=0.0) or 1.0, len(sliced.seen_along)
    start = 0
    for column in range(1, columns + 1):
        if column < columns and sliced.seen_along[column] == sliced.seen_along[start]:
            continue
        times = sliced.seen_along[start]
        opacity = f"{0.08 + 0.92 * times / highest:.2f}"
        seen, style = f"seen {times:g} {plural(times, 'time')}", {"class_": "tp-heat", "fill_opacity": opacity}
        yield _segment(start / columns, column / columns, HEAT_LANE, seen, **style)
        start = column


def _segment(start: float, end: float, lane: tuple[int, int], title: str, **attributes: str) -> str:
    """A part of the text in a lane: its top and height."""
    width = max(0.8, MAP_WIDTH * (end - start) - 0.4)
    return svg.bar(float(MAP_WIDTH * start), lane[0], width, lane[1], title, **attributes)


def _cuts(positions: Sequence[float]) -> Iterator[str]:
    for position in positions[:: max(1, len(positions) // MAX_BARS)]:
        yield svg.vertical_line(float(MAP_WIDTH * position), 0, 58, "tp-cut", "hard cut")


def planned_rates(settings: TrainingSettings, plan: StepPlan) -> tuple[list[Phase], list[float]]:
    """The phases of the schedule, and the learning rate of each step."""
    phases = settings.learning.phases(plan)
    return phases, [settings.learning.learning_rate * m for m in lr_multipliers(phases, plan.steps)]


def lr_plan_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw the planned learning rate, with the ends of the epochs and the checkpoints."""
    _, rates = planned_rates(settings, plan)
    return draw_curve((), rates, list(_plan_marks(settings, plan)))


def lr_plan_legend(settings: TrainingSettings) -> dict[str, str]:
    """The legend of the planned learning rate, by color."""
    saving = settings.saving
    ends = "end of an epoch" + (" (with a checkpoint)" if saving.save_each_epoch else "")
    return {"#c98a10": "planned learning rate", "#2f9e5b": ends + (", or a checkpoint" * bool(saving.save_every))}


def small_lr_svg(settings: TrainingSettings, plan: StepPlan) -> str:
    """Draw a small chart of the planned learning rate, with the ends of the epochs."""
    phases, rates = planned_rates(settings, plan)
    x = svg.scale(0, max(1, len(rates) - 1), 0, 200)
    y = svg.scale(0, max(rates) or 1.0, 42, 6)
    ends = ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:40]
    epochs = [svg.vertical_line(200 * step / len(rates), 4, 42) for step in ends]
    line = svg.polyline((x(n), y(rates[n])) for n in range(0, len(rates), max(1, len(rates) // 120)))
    label = f"{settings.learning.schedule}: {describe_phases(phases)}"
    return svg.picture(200, 46, "tp-small", label, [*epochs, line], title=label, preserveAspectRatio="none")


def _plan_marks(settings: TrainingSettings, plan: StepPlan) -> Iterator[Mark]:
    saving = settings.saving
    for number, step in enumerate(ScheduleSteps(plan.steps, plan.steps_per_epoch).epoch_ends[:100], start=1):
        label = f"end of epoch {number}" if step % plan.steps_per_epoch == 0 else "end of the run"
        yield Mark(step, label + (", checkpoint" if saving.save_each_epoch else ""))
    every = interval_steps(saving.save_every, plan.steps)
    if every and plan.steps // every <= 100:
        yield from (Mark(s, "checkpoint") for s in range(every, plan.steps + 1, every))


Series = list[tuple[int, float]]
WIDTH, HEIGHT, LEFT, BASE = 640, 130, 52, 108
CHAR_WIDTH = 7  # of a number at the axis
MAX_POINTS, MAX_DOTS, STEPS_PER_POINT = 240, 40, 25
COLORS = ("#2f74c0", "#c98a10", "#2f9e5b", "#7a4fb5", "#cf3f3f", "#3a8f8f")


def run_charts(
    steps: Sequence[Step], evaluations: Sequence[EvaluationDone], recalls: Sequence[RecallMeasured]
) -> str:
    """All charts of a run that have data."""
    # Divide the run into at most MAX_POINTS intervals, with a sample of the steps of each.
    length = max(1, math.ceil(len(steps) / MAX_POINTS))
    every = max(1, length // STEPS_PER_POINT)
    intervals = [steps[n : n + length : every] for n in range(0, len(steps), length)]
    perplexities = [(e.step, e.perplexity) for e in evaluations]
    accuracies = [(e.step, 100 * e.accuracy) for e in evaluations]
    gains = [(e.step, e.context_gain) for e in evaluations if e.context_gain is not None]
    rates = [(interval[-1].step, interval[-1].learning_rate) for interval in intervals]
    norms = ((i[-1].step, [s.gradient_norm for s in i if s.gradient_norm is not None]) for i in intervals)
    charts: dict[str, Mapping[str, Series]] = {
        "Loss on each dataset": _loss_by_dataset(intervals),
        "Validation loss on each dataset": _loss_by_dataset([[e] for e in evaluations]),
        "Validation perplexity": {"perplexity": perplexities},
        "Validation: tokens predicted correctly (%)": {"right": accuracies},
        "Context gain": {"context gain": gains},
        "Recall (%)": {
            "training data": [(r.step, 100 * r.learned.recall) for r in recalls],
            "unseen text": [(r.step, 100 * r.control.recall) for r in recalls if r.control],
        },
        "Loss on training, unseen and general text": {
            "training data": [(r.step, r.learned.loss) for r in recalls],
            "unseen text": [(r.step, r.control.loss) for r in recalls if r.control],
            "general text": [(r.step, r.general_loss) for r in recalls if r.general_loss is not None],
        },
        "Gradient norm": {
            "gradient norm": [(step, sum(values) / len(values)) for step, values in norms if values]
        },
        "Learning rate used": {"learning rate": rates},
    }
    epoch = steps_per_epoch(steps)
    return "".join(line_chart(title, series, epoch) for title, series in charts.items())


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
    drawn = {name: points for name, points in finite.items() if points}
    if not drawn:
        return ""
    if all(len(points) == 1 for points in drawn.values()):
        return _single_values(title, drawn)
    colors = list(zip(cycle(COLORS), drawn, strict=False))
    legend = markup.legend(colors) if len(drawn) > 1 else ""
    ends = "; ".join(f"{name} from {p[0][1]:.4g} to {p[-1][1]:.4g}" for name, p in drawn.items())
    chart = svg.picture(WIDTH, HEIGHT, "tp-chart", f"{title}: {ends}", _axes_and_lines(drawn, colors, epoch))
    return f'<p class="tp-quiet tp-key"><span>{escape(title)}</span> {legend}</p>{chart}'


def _axes_and_lines(drawn: Mapping[str, Series], colors: Sequence[tuple[str, str]], epoch: float) -> Iterator[str]:
    steps, values = zip(*(point for points in drawn.values() for point in points), strict=True)
    first, last, low, high = min(steps), max(steps), min(values), max(values)
    left = max(LEFT, *(CHAR_WIDTH * len(format_digits(value)) + 10 for value in (low, high)))
    x = svg.scale(first, max(last, first + 1), left, WIDTH - 12)
    y = svg.scale(low, high, BASE, 10)
    yield from svg.value_axis(sorted({low, high}), y, left, WIDTH - 8, format_digits)
    yield from svg.step_axis(sorted({first, last}), x, HEIGHT - 6, epoch)
    for color, name in colors:
        points = drawn[name]
        yield svg.polyline(((x(step), y(value)) for step, value in points), style=f"stroke:{color}")
        css_class = "tp-hover" if len(points) > 1 else "tp-point"
        for step, value in points[:: max(1, len(points) // MAX_DOTS)]:
            tooltip = f"step {step}: {name} {value:.4g}"
            yield svg.dot(x(step), y(value), 5, css_class, tooltip, style=f"color:{color}")


def _single_values(title: str, drawn: Mapping[str, Series]) -> str:
    """A sentence instead of a chart, if every line has only one point."""
    values = "; ".join(
        f"{name + ' ' if len(drawn) > 1 else ''}{format_digits(value)} at step {step}"
        for name, ((step, value),) in drawn.items()
    )
    return markup.paragraph(f"{title}, measured once so far: {values}", quiet=True)
