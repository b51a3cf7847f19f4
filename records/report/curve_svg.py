"""The loss curve of a run as SVG, without a plotting library; equal runs give equal images."""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from html import escape
from typing import NamedTuple

from ...train_utils import plural

WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 44, 54, 12, 30
MAX_POINTS = 600
MIN_MARK_DISTANCE = 14.0


class Point(NamedTuple):
    """One step on the curve. A tuple for speed: opening the page creates one for every step so far."""

    step: int
    loss: float
    smoothed: float
    rate: float
    at: float = 0.0


@dataclass(frozen=True)
class Mark:
    """An event at a step: a checkpoint, the end of an epoch."""

    step: int
    text: str


@dataclass(frozen=True)
class ValidationLoss:
    """The loss on the validation split after a step."""

    step: int
    loss: float


def draw_curve(
    points: Sequence[Point],
    rates: Sequence[float],
    marks: Sequence[Mark] = (),
    kept: Sequence[ValidationLoss] = (),
) -> str:
    """Draw the losses and the learning rate, also as planned for the rest of the run."""
    steps = max(len(rates), points[-1].step if points else 0, 1)
    x = _scale(0 if kept else 1, max(2, steps), LEFT, WIDTH - RIGHT)
    rate_y = _scale(0, max([*rates, 1e-12]) * 1.08, HEIGHT - BOTTOM, TOP)
    parts = [_rate_line(rates, x, rate_y), *_steps_axis(steps, x), *_rate_axis(rates, rate_y)]
    validation = [p for p in kept if math.isfinite(p.loss)]
    if points or validation:
        parts += _loss_lines(points, validation, x)
    parts += [_mark_line(mark, x) for mark in _spaced(marks, x)]
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" aria-label="{escape(describe_curve(points, steps))}" '
        f'class="tp-curve" preserveAspectRatio="xMidYMid meet">{"".join(parts)}</svg>'
    )


def describe_curve(points: Sequence[Point], steps: int) -> str:
    """Describe the curve in a sentence, for screen readers."""
    if not points:
        return f"Planned: {steps} {plural(steps, 'step')}."
    first, last = points[0], points[-1]
    return (
        f"Loss over {last.step} of {steps} {plural(steps, 'step')}: "
        f"smoothed from {first.smoothed:.3f} to {last.smoothed:.3f}, last {last.loss:.3f}."
    )


def thin_points(points: Sequence[Point], most: int = MAX_POINTS) -> list[Point]:
    """Reduce the points without a visible difference: keep the lowest and the highest loss of each interval."""
    if len(points) <= most:
        return list(points)
    interval = math.ceil(len(points) / (most / 2))
    selection: list[Point] = []
    for start in range(0, len(points), interval):
        chunk = points[start : start + interval]
        extremes = {min(chunk, key=lambda p: p.loss), max(chunk, key=lambda p: p.loss)}
        selection += sorted(extremes, key=lambda p: p.step)
    if selection[0] is not points[0]:
        selection.insert(0, points[0])
    if selection[-1] is not points[-1]:
        selection.append(points[-1])
    return selection


def _loss_lines(
    points: Sequence[Point], validation: Sequence[ValidationLoss], x: Callable[[float], float]
) -> list[str]:
    drawn = thin_points([p for p in points if math.isfinite(p.loss)])
    if not drawn and not validation:
        return []
    low, high = _value_range([*(p.loss for p in drawn), *(p.loss for p in validation)])
    y = _scale(low, high, HEIGHT - BOTTOM, TOP)
    raw = _polyline([(x(p.step), y(p.loss)) for p in drawn], "tp-loss")
    smooth = _polyline([(x(p.step), y(p.smoothed)) for p in drawn], "tp-smoothed")
    if len(drawn) == 1:  # a line of one point is invisible
        only = drawn[0]
        smooth += f'<circle cx="{x(only.step):.1f}" cy="{y(only.smoothed):.1f}" r="4" class="tp-smoothed-dot"/>'
    hover = [_hover_dot(p, x(p.step), y(p.smoothed)) for p in drawn[:: max(1, len(drawn) // 200)]]
    return [*_loss_axis(low, high, y), raw, smooth, *_validation_line(validation, x, y), *hover]


def _validation_line(
    validation: Sequence[ValidationLoss], x: Callable[[float], float], y: Callable[[float], float]
) -> list[str]:
    """Draw the loss on the validation split: a line, and a dot for each evaluation."""
    if not validation:
        return []
    dots = [
        f'<circle cx="{x(p.step):.1f}" cy="{y(p.loss):.1f}" r="3.5" class="tp-kept-dot">'
        f"<title>step {p.step}: kept aside {p.loss:.4f}</title></circle>"
        for p in validation
    ]
    return [_polyline([(x(p.step), y(p.loss)) for p in validation], "tp-kept"), *dots]


def _value_range(losses: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(losses)
    low, high = ordered[0], ordered[max(0, math.ceil(0.995 * len(ordered)) - 1)]
    gap = max(0.05 * (high - low), 0.02)
    return max(0.0, low - gap), high + gap


def _hover_dot(point: Point, x: float, y: float) -> str:
    text = (
        f"step {point.step}: loss {point.loss:.4f}, smoothed {point.smoothed:.4f}, learning rate {point.rate:.3g}"
    )
    return f'<circle cx="{x:.1f}" cy="{y:.1f}" r="6" class="tp-hover"><title>{text}</title></circle>'


def _rate_line(rates: Sequence[float], x: Callable[[float], float], y: Callable[[float], float]) -> str:
    stride = max(1, len(rates) // MAX_POINTS)
    steps = list(range(0, len(rates), stride))
    if rates and steps[-1] != len(rates) - 1:
        steps.append(len(rates) - 1)
    return _polyline([(x(s + 1), y(rates[s])) for s in steps], "tp-rate")


def _polyline(points: Sequence[tuple[float, float]], name: str) -> str:
    return f'<polyline class="{name}" points="{" ".join(f"{a:.1f},{b:.1f}" for a, b in points)}"/>'


def _spaced(marks: Sequence[Mark], x: Callable[[float], float]) -> list[Mark]:
    """Drop marks that are too close to the next one; the last one is always kept."""
    visible: list[Mark] = []
    for mark in sorted(marks, key=lambda m: -m.step):
        if not visible or x(visible[-1].step) - x(mark.step) >= MIN_MARK_DISTANCE:
            visible.append(mark)
    return visible[::-1]


def _mark_line(mark: Mark, x: Callable[[float], float]) -> str:
    mark_x = x(mark.step)
    return (
        f'<line class="tp-mark" x1="{mark_x:.1f}" x2="{mark_x:.1f}" y1="{TOP}" y2="{HEIGHT - BOTTOM}">'
        f"<title>step {mark.step}: {escape(mark.text)}</title></line>"
    )


def _steps_axis(steps: int, x: Callable[[float], float]) -> list[str]:
    return [
        f'<text class="tp-axis" text-anchor="middle" x="{x(s):.1f}" y="{HEIGHT - 12}">{s}</text>'
        for s in sorted({1, *(round(steps * q / 4) for q in range(1, 5))})
        if s >= 1
    ]


def _loss_axis(low: float, high: float, y: Callable[[float], float]) -> list[str]:
    values = [low + (high - low) * q / 3 for q in range(4)]
    return [
        f'<line class="tp-grid" x1="{LEFT}" x2="{WIDTH - RIGHT}" y1="{y(v):.1f}" y2="{y(v):.1f}"/>'
        f'<text class="tp-axis" text-anchor="end" x="{LEFT - 6}" y="{y(v) + 4:.1f}">{v:.2f}</text>'
        for v in values
    ]


def _rate_axis(rates: Sequence[float], y: Callable[[float], float]) -> list[str]:
    if not rates:
        return []
    peak = max(rates)
    return [
        f'<text class="tp-axis tp-rate-axis" x="{WIDTH - RIGHT + 6}" y="{y(v) + 4:.1f}">{v:.2g}</text>'
        for v in (0.0, peak)
    ]


def _scale(low: float, high: float, a: float, b: float) -> Callable[[float], float]:
    width = (high - low) or 1.0
    return lambda value: a + (min(max(value, low), high) - low) / width * (b - a)
