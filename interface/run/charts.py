"""Line charts of a run: loss per dataset, gradient norm, learning rate, and any other lines over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from html import escape
from itertools import cycle

from ...core.jobs import EvaluationDone, RecallMeasured, Step
from ...records.report import steps_per_epoch, svg
from ...train_utils import format_digits
from ..base import markup

Series = list[tuple[int, float]]
WIDTH, HEIGHT, LEFT, BASE = 640, 130, 52, 108
CHAR_WIDTH = 7  # of a number at the axis
MAX_POINTS, MAX_DOTS, STEPS_PER_POINT = 240, 40, 25
COLORS = ("#2f74c0", "#c98a10", "#2f9e5b", "#7a4fb5", "#cf3f3f", "#3a8f8f")


def run_charts(
    steps: Sequence[Step], evaluations: Sequence[EvaluationDone], recalls: Sequence[RecallMeasured]
) -> str:
    """All charts of a run that have data."""
    intervals = _intervals(steps)
    perplexities = [(e.step, e.perplexity) for e in evaluations]
    accuracies = [(e.step, 100 * e.accuracy) for e in evaluations]
    gains = [(e.step, e.context_gain) for e in evaluations if e.context_gain is not None]
    rates = [(interval[-1].step, interval[-1].learning_rate) for interval in intervals]
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
        "Gradient norm": {"gradient norm": _gradient_norms(intervals)},
        "Learning rate used": {"learning rate": rates},
    }
    epoch = steps_per_epoch(steps)
    return "".join(line_chart(title, series, epoch) for title, series in charts.items())


def _intervals(steps: Sequence[Step]) -> list[Sequence[Step]]:
    """Divide the run into at most MAX_POINTS intervals, with a sample of the steps of each."""
    length = max(1, math.ceil(len(steps) / MAX_POINTS))
    every = max(1, length // STEPS_PER_POINT)
    return [steps[n : n + length : every] for n in range(0, len(steps), length)]


def _loss_by_dataset(intervals: Sequence[Sequence[Step | EvaluationDone]]) -> dict[str, Series]:
    """The mean loss of each dataset in each interval."""
    series: dict[str, Series] = {}
    for interval in intervals:
        for name in dict.fromkeys(name for event in interval for name in event.by_source):
            losses = [event.by_source[name] for event in interval if name in event.by_source]
            series.setdefault(name, []).append((interval[-1].step, sum(losses) / len(losses)))
    return series


def _gradient_norms(intervals: Sequence[Sequence[Step]]) -> Series:
    norms = ((i[-1].step, [s.gradient_norm for s in i if s.gradient_norm is not None]) for i in intervals)
    return [(step, sum(values) / len(values)) for step, values in norms if values]


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
