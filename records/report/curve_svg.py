"""The loss curve of a run as SVG; equal runs give equal pictures."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape

from ...core.jobs import EvaluationDone, Step
from ...train_utils import format_digits, plural
from .svg import Scale, axis_label, dot, element, picture, polyline, scale, step_axis, value_axis, vertical_line

WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 44, 54, 12, 30
MAX_POINTS, MAX_TOOLTIPS = 600, 200
MIN_MARK_DISTANCE = 14.0
CHAR_WIDTH = 8.0


@dataclass(frozen=True)
class Mark:
    """An event at a step: a checkpoint, the end of an epoch."""

    step: int
    text: str


def draw_curve(
    steps: Sequence[Step],
    rates: Sequence[float],
    marks: Sequence[Mark] = (),
    evaluations: Sequence[EvaluationDone] = (),
) -> str:
    """Draw the losses and the learning rate, also as planned for the rest of the run."""
    last = max(len(rates), steps[-1].step if steps else 0, 1)
    x = scale(0 if evaluations else 1, max(2, last), LEFT, WIDTH - RIGHT)
    quarters = sorted({1, *(round(last * quarter / 4) for quarter in range(1, 5))} - {0})
    parts = [
        *_rate_line(rates, x),
        *step_axis(quarters, x, HEIGHT - 12, steps_per_epoch(steps)),
        *_loss_lines(steps, [e for e in evaluations if math.isfinite(e.loss)], x),
        *_mark_lines(marks, x),
        *_phase_lines(phase_marks(steps), x),
    ]
    label = describe_curve(steps, last)
    return picture(WIDTH, HEIGHT, "tp-curve", label, parts, preserveAspectRatio="xMidYMid meet")


def steps_per_epoch(steps: Sequence[Step]) -> float:
    """Return the steps of an epoch by the last step that names its epoch; 0 if that is not known."""
    count = next((step.step / step.epoch for step in reversed(steps) if step.epoch), 0.0)
    return count if 1 <= count < math.inf else 0.0


def phase_marks(steps: Sequence[Step]) -> list[Mark]:
    """Return the step at which each phase of the order begins, if there are phases."""
    marks: list[Mark] = []
    for step in steps:
        if step.phase and (not marks or marks[-1].text != step.phase):
            marks.append(Mark(step.step, step.phase))
    return marks


def describe_curve(steps: Sequence[Step], last_step: int) -> str:
    """Describe the curve in a sentence, for screen readers."""
    if not steps:
        return f"Planned: {last_step} {plural(last_step, 'step')}."
    first, last = steps[0], steps[-1]
    return (
        f"Loss over {last.step} of {last_step} {plural(last_step, 'step')}: "
        f"the smoothed loss goes from {first.smoothed:.3f} to {last.smoothed:.3f}. "
        f"The last loss is {last.loss:.3f}."
    )


def thin_steps(steps: Sequence[Step], most: int = MAX_POINTS) -> list[Step]:
    """Drop steps without a visible difference: keep the ends, and the lowest and highest loss of each interval."""
    if len(steps) <= most:
        return list(steps)
    interval = math.ceil(len(steps) / (most / 2))
    chunks = [steps[start : start + interval] for start in range(0, len(steps), interval)]
    lows, highs = ([pick(chunk, key=lambda s: s.loss) for chunk in chunks] for pick in (min, max))
    selection = {step.step: step for step in (steps[0], *lows, *highs, steps[-1])}
    return [selection[number] for number in sorted(selection)]


def _loss_lines(steps: Sequence[Step], evaluations: Sequence[EvaluationDone], x: Scale) -> Iterator[str]:
    drawn = thin_steps([s for s in steps if math.isfinite(s.loss)])
    if not drawn and not evaluations:
        return
    low, high = _value_range([*(s.loss for s in drawn), *(e.loss for e in evaluations)])
    y = scale(low, high, HEIGHT - BOTTOM, TOP)
    spacing = (high - low) / 3
    digits = 3 if spacing < 0.1 else 2  # the distances of the labels look equal
    levels = [low + spacing * q for q in range(4)]
    yield from value_axis(levels, y, LEFT, WIDTH - RIGHT, f"{{:.{digits}f}}".format)
    yield polyline(((x(s.step), y(s.loss)) for s in drawn), class_="tp-loss")
    yield polyline(((x(s.step), y(s.smoothed)) for s in drawn), class_="tp-smoothed")
    if len(drawn) == 1:  # a line of one point is invisible
        yield dot(x(drawn[0].step), y(drawn[0].smoothed), 4, "tp-smoothed-dot")
    if evaluations:
        yield polyline(((x(e.step), y(e.loss)) for e in evaluations), class_="tp-kept")
    for e in evaluations:
        yield dot(x(e.step), y(e.loss), 3.5, "tp-kept-dot", f"step {e.step}: {_evaluation_text(e)}")
    for s in drawn[:: max(1, len(drawn) // MAX_TOOLTIPS)]:
        figures = f"loss {s.loss:.4f}, smoothed {s.smoothed:.4f}, learning rate {format_digits(s.learning_rate)}"
        epoch = f", epoch {s.epoch:.4g}" if s.epoch else ""
        yield dot(x(s.step), y(s.smoothed), 6, "tp-hover", f"step {s.step}: {figures}{epoch}")


def _evaluation_text(evaluation: EvaluationDone) -> str:
    perplexity, gain = evaluation.perplexity, evaluation.context_gain
    figures = [f"validation loss {evaluation.loss:.4f}"]
    figures += [f"perplexity {perplexity:.4g}"] if math.isfinite(perplexity) else []
    figures += [] if gain is None else [f"context gain {gain:.4f}"]
    return ", ".join(figures)


def _value_range(losses: Sequence[float]) -> tuple[float, float]:
    ordered = sorted(losses)
    low, high = ordered[0], ordered[max(0, math.ceil(0.995 * len(ordered)) - 1)]
    gap = max(0.05 * (high - low), 0.02)
    return max(0.0, low - gap), high + gap


def _rate_line(rates: Sequence[float], x: Scale) -> Iterator[str]:
    peak = max(rates, default=0.0)
    y = scale(0, max(peak, 1e-12) * 1.08, HEIGHT - BOTTOM, TOP)
    indices = sorted({*range(0, len(rates), max(1, len(rates) // MAX_POINTS)), len(rates) - 1} - {-1})
    yield polyline(((x(n + 1), y(rates[n])) for n in indices), class_="tp-rate")
    for value in (0.0, peak) if rates else ():
        text = format_digits(value, 2)
        yield axis_label(WIDTH - RIGHT + 6, y(value) + 4, text, css_class="tp-axis tp-rate-axis")


def _mark_lines(marks: Sequence[Mark], x: Scale) -> Iterator[str]:
    """Draw the marks; one that is too close to the next one is omitted."""
    next_x = math.inf
    for mark in sorted(marks, key=lambda m: -m.step):
        if next_x - x(mark.step) >= MIN_MARK_DISTANCE:
            next_x = x(mark.step)
            yield vertical_line(next_x, TOP, HEIGHT - BOTTOM, "tp-mark", f"step {mark.step}: {mark.text}")


def _phase_lines(phases: Sequence[Mark], x: Scale) -> Iterator[str]:
    """Draw where each phase begins, with its name; each name is a line lower, so that none covers another."""
    for row, phase in enumerate(phases):
        place = x(phase.step)
        yield vertical_line(place, TOP, HEIGHT - BOTTOM, "tp-phase", f"from step {phase.step}: {phase.text}")
        fits = place + CHAR_WIDTH * len(phase.text) < WIDTH
        anchor, offset = ("start", 4) if fits else ("end", -4)
        attributes = {"class_": "tp-phase-name", "text_anchor": anchor, "dy": f"{1 + 1.2 * row:g}em"}
        yield element("text", escape(phase.text), x=place + offset, y=TOP, **attributes)
