"""Charts of a run: loss per dataset, gradient norm, learning rate, and any other lines over the steps."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

from ...core.jobs import EvaluationDone, Progress
from ..base import markup

Series = list[tuple[int, float]]
WIDTH, HEIGHT, LEFT, BASE = 640, 130, 52, 108
MAX_POINTS, MAX_DOTS, STEPS_PER_POINT = 240, 40, 25
COLORS = ("#2f74c0", "#c98a10", "#2f9e5b", "#7a4fb5", "#cf3f3f", "#3a8f8f")


class ExtraCharts:
    """Collects the steps of a run, and draws the charts only on request: most of them are never viewed."""

    def __init__(self) -> None:
        self._steps: list[Progress] = []
        self._evaluations: list[EvaluationDone] = []

    def add_step(self, event: Progress) -> None:
        self._steps.append(event)

    def add_evaluation(self, event: EvaluationDone) -> None:
        self._evaluations.append(event)

    def html(self) -> str:
        """All charts that have data."""
        intervals = _intervals(self._steps)
        rates = [(interval[-1].step, interval[-1].learning_rate) for interval in intervals]
        return "".join(
            [
                line_chart("Loss of each data set", _loss_by_dataset(intervals)),
                *self._validation_charts(),
                line_chart("Gradient norm", {"gradient norm": _gradient_norms(intervals)}),
                line_chart("Learning rate as it was", {"learning rate": rates}),
            ]
        )

    def _validation_charts(self) -> Iterator[str]:
        evaluations = self._evaluations
        names = dict.fromkeys(name for e in evaluations for name in e.by_source)
        losses = {
            name: [(e.step, e.by_source[name]) for e in evaluations if name in e.by_source] for name in names
        }
        yield line_chart("Kept aside: loss of each data set", losses)
        yield line_chart("Kept aside: perplexity", {"perplexity": [(e.step, e.perplexity) for e in evaluations]})
        yield line_chart(
            "Kept aside: tokens guessed right, %", {"right": [(e.step, 100 * e.accuracy) for e in evaluations]}
        )


def _intervals(steps: Sequence[Progress]) -> list[Sequence[Progress]]:
    """Divide the run into at most MAX_POINTS intervals, with a sample of the steps of each."""
    length = max(1, math.ceil(len(steps) / MAX_POINTS))
    every = max(1, length // STEPS_PER_POINT)
    return [steps[n : n + length : every] for n in range(0, len(steps), length)]


def _loss_by_dataset(intervals: Sequence[Sequence[Progress]]) -> dict[str, Series]:
    result: dict[str, Series] = {}
    for interval in intervals:
        by_name: dict[str, list[float]] = {}
        for event in interval:
            for name, loss in event.by_source.items():
                by_name.setdefault(name, []).append(loss)
        for name, losses in by_name.items():
            result.setdefault(name, []).append((interval[-1].step, _mean(losses)))
    return result


def _gradient_norms(intervals: Sequence[Sequence[Progress]]) -> Series:
    by_step = [
        (interval[-1].step, [e.gradient_norm for e in interval if e.gradient_norm is not None])
        for interval in intervals
    ]
    return [(step, _mean(norms)) for step, norms in by_step if norms]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class ChartFrame:
    """The ranges of a chart, mapped to coordinates."""

    first: int
    last: int
    low: float
    high: float

    @staticmethod
    def around(series: Mapping[str, Series]) -> ChartFrame:
        steps = [step for points in series.values() for step, _ in points]
        values = [value for points in series.values() for _, value in points]
        return ChartFrame(min(steps), max(steps), min(values), max(values))

    def x(self, step: int) -> float:
        return LEFT + (WIDTH - 12 - LEFT) * (step - self.first) / max(1, self.last - self.first)

    def y(self, value: float) -> float:
        height = self.high - self.low
        return BASE - (BASE - 10) * ((value - self.low) / height if height > 0 else 0.5)


def line_chart(title: str, series: Mapping[str, Series]) -> str:
    """Draw lines over the steps, under one title; empty without finite values."""
    drawn = {name: [p for p in points if math.isfinite(p[1])] for name, points in series.items()}
    drawn = {name: points for name, points in drawn.items() if points}
    if not drawn:
        return ""
    if all(len(points) == 1 for points in drawn.values()):
        return _single_values(title, drawn)
    frame = ChartFrame.around(drawn)
    lines = "".join(_polyline(name, drawn[name], frame, color) for name, color in _with_colors(drawn))
    return (
        f'<p class="tp-quiet tp-key"><span>{escape(title)}</span> {_legend(drawn)}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="tp-chart" '
        f'aria-label="{escape(_aria_label(title, drawn))}">{"".join(_axis(frame))}{lines}</svg>'
    )


def _single_values(title: str, drawn: Mapping[str, Series]) -> str:
    """A sentence instead of a chart, if every line has only one point."""
    several = len(drawn) > 1
    values = "; ".join(
        f"{name + ' ' if several else ''}{value:.4g} at step {step}" for name, ((step, value),) in drawn.items()
    )
    return markup.paragraph(f"{title}, one value so far: {values}", quiet=True)


def _polyline(name: str, points: Series, frame: ChartFrame, color: str) -> str:
    css_class = "tp-hover" if len(points) > 1 else "tp-point"
    coordinates = " ".join(f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in points)
    dots = "".join(
        f'<circle cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}" r="5" class="{css_class}" '
        f'style="color:{color}">'
        f"<title>step {step}: {escape(name)} {value:.4g}</title></circle>"
        for step, value in points[:: max(1, len(points) // MAX_DOTS)]
    )
    return f'<polyline points="{coordinates}" style="stroke:{color}"/>{dots}'


def _axis(frame: ChartFrame) -> Iterator[str]:
    for value in sorted({frame.low, frame.high}):
        y = frame.y(value)
        yield f'<line class="tp-grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tp-axis" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{value:.3g}</text>'
    for step in {frame.first, frame.last}:
        x = frame.x(step)
        yield f'<text class="tp-axis" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - 6}">{step}</text>'


def _legend(drawn: Mapping[str, Series]) -> str:
    if len(drawn) == 1:
        return ""
    return markup.legend((color, name) for name, color in _with_colors(drawn))


def _with_colors(drawn: Mapping[str, Series]) -> Iterator[tuple[str, str]]:
    return zip(drawn, cycle(COLORS), strict=False)


def _aria_label(title: str, drawn: Mapping[str, Series]) -> str:
    """A description of the chart for screen readers."""
    ends = "; ".join(f"{name} from {p[0][1]:.4g} to {p[-1][1]:.4g}" for name, p in drawn.items())
    return f"{title}: {ends}"
