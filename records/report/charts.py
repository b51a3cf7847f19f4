"""The pictures of a run: the loss curve and the recall as SVG, and training_graph.png if matplotlib is installed.

The SVGs need no plotting library, and their colors come from CSS classes, so one picture suits the page and the
report, light and dark. Equal runs give equal pictures.
"""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from statistics import median
from textwrap import shorten
from typing import Any, NamedTuple

from ...core.files import atomic_write
from ...core.jobs import EvaluationDone, ExamAsked, Step
from ...train_utils import format_count, format_digits, plural
from .graph_file import GraphEvent

# Maps a value to a coordinate.
Scale = Callable[[float], float]
MAX_EPOCH_TICKS = 6
# The loss curve: its size, its margins, and how much of a long run is drawn. 600 points are about one for each
# pixel; with a tooltip for each of 200 of them, the picture of 10,000 steps stays below 200 kB.
WIDTH, HEIGHT = 640, 270
LEFT, RIGHT, TOP, BOTTOM = 44, 54, 12, 30
MAX_POINTS, MAX_TOOLTIPS = 600, 200
MIN_MARK_DISTANCE = 14.0
CHAR_WIDTH = 8.0  # of a phase's name at 12 px, on the safe side
STRIP_HEIGHT, MAX_CELLS = 26, 160
MAP_HEIGHT, TOPIC_COLORS = 400, 12  # of the map of a dataset; more clusters get colors between these
EXAM_ROW, EXAM_LEFT, EXAM_NAME_CHARS = 22, 240, 38
MAX_EPOCH_LABELS = 20  # in the PNG
EPOCH_ROUNDING = 1e-3  # the graph stores epochs with four digits


def picture(width: int, height: int, css_class: str, label: str, parts: Iterable[str], **more: str) -> str:
    """A whole picture; screen readers read the label."""
    # The picture scales with its place: the style sheet sets the width, and the view box keeps the proportions.
    view_box, content = f"0 0 {width} {height}", "".join(parts)
    return element("svg", content, viewBox=view_box, role="img", class_=css_class, aria_label=label, **more)


def element(tag: str, content: str = "", *, title: str = "", **attributes: float | str | None) -> str:
    """An element with rounded coordinates; `title` is its tooltip, `text_anchor` becomes text-anchor."""
    values = ""
    for name, value in attributes.items():
        if value is not None:
            text = f"{value:.1f}" if isinstance(value, float) else str(value)
            values += f' {name.rstrip("_").replace("_", "-")}="{escape(text)}"'
    inside = (f"<title>{escape(title)}</title>" if title else "") + content
    return f"<{tag}{values}>{inside}</{tag}>" if inside else f"<{tag}{values}/>"


def polyline(points: Iterable[tuple[float, float]], **attributes: str) -> str:
    return element("polyline", points=" ".join(f"{x:.1f},{y:.1f}" for x, y in points), **attributes)


def dot(x: float, y: float, radius: float, css_class: str, title: str = "", **attributes: str) -> str:
    return element("circle", title=title, cx=x, cy=y, r=radius, class_=css_class, **attributes)


def bar(x: float, y: float, width: float, height: float, title: str, **attributes: str) -> str:
    return element("rect", title=title, x=x, y=y, width=width, height=height, **attributes)


def vertical_line(x: float, top: int, bottom: int, css_class: str | None = None, title: str = "") -> str:
    return element("line", title=title, class_=css_class, x1=x, x2=x, y1=top, y2=bottom)


def axis_label(x: float, y: float, text: str, anchor: str | None = None, css_class: str = "tp-axis") -> str:
    return element("text", escape(text), class_=css_class, text_anchor=anchor, x=x, y=y)


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Map values between `low` and `high` to coordinates; of an empty range to the middle."""
    if high <= low:
        return lambda _: (start + end) / 2
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)


def value_axis(
    values: Iterable[float], y: Scale, left: int, right: int, text: Callable[[float], str]
) -> Iterator[str]:
    """A grid line for each value, with the value on the left."""
    for value in values:
        yield element("line", class_="tp-grid", x1=left, x2=right, y1=y(value), y2=y(value))
        yield axis_label(left - 6, y(value) + 4, text(value), "end")


def step_axis(steps: Sequence[int], x: Scale, baseline: int, steps_per_epoch: float = 0.0) -> Iterator[str]:
    """The numbers of these steps in a row, and the epochs of the same range; CSS shows one of both."""
    by_step = [axis_label(x(step), baseline, str(step), "middle") for step in steps]
    if not steps_per_epoch:
        yield from by_step
        return
    first, last = steps[0] / steps_per_epoch, steps[-1] / steps_per_epoch
    epochs: list[float] = []
    if last > first:
        # Round numbers, at most MAX_EPOCH_TICKS of them: the distance is 1, 2 or 5 times a power of ten.
        least = (last - first) / (MAX_EPOCH_TICKS - 1)
        power = 10.0 ** math.floor(math.log10(least))
        distance = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
        numbers = range(math.ceil(first / distance), math.floor(last / distance + 1e-3) + 1)
        epochs = [float(f"{number * distance:.6g}") for number in numbers]
    by_epoch = (
        axis_label(x(epoch * steps_per_epoch), baseline, f"{epoch:.4g}", "middle") for epoch in epochs or [last]
    )
    yield element("g", "".join(by_step), class_="tp-by-step")
    yield element("g", "".join(by_epoch), class_="tp-by-epoch")


@dataclass(frozen=True)
class Mark:
    """An event at a step: a checkpoint, the end of an epoch."""

    step: int
    text: str


def steps_per_epoch(steps: Sequence[Step]) -> float:
    """Return the steps of an epoch by the last step that names its epoch; 0 if that is not known."""
    # The last steps, since a step in the first epoch has the most rounded epoch; other programs may write none.
    count = next((step.step / step.epoch for step in reversed(steps) if step.epoch), 0.0)
    return count if 1 <= count < math.inf else 0.0


def phase_marks(steps: Sequence[Step]) -> list[Mark]:
    """Return the step at which each phase of the order begins, if there are phases."""
    marks: list[Mark] = []
    for step in steps:
        if step.phase and (not marks or marks[-1].text != step.phase):
            marks.append(Mark(step.step, step.phase))
    return marks


def thin_steps(steps: Sequence[Step]) -> list[Step]:
    """Drop steps without a visible difference: keep the ends, and the lowest and highest loss of each interval."""
    if len(steps) <= MAX_POINTS:
        return list(steps)
    interval = math.ceil(len(steps) / (MAX_POINTS / 2))
    kept = {step.step: step for step in (steps[0], steps[-1])}
    for start in range(0, len(steps), interval):
        for pick in (min, max):
            step = pick(steps[start : start + interval], key=lambda s: s.loss)
            kept[step.step] = step
    return [kept[number] for number in sorted(kept)]


def draw_curve(
    steps: Sequence[Step],
    rates: Sequence[float],
    marks: Sequence[Mark] = (),
    evaluations: Sequence[EvaluationDone] = (),
) -> str:
    """Draw the losses and the learning rate, also as planned for the rest of the run."""
    last_step = max(len(rates), steps[-1].step if steps else 0, 1)
    x = scale(0 if evaluations else 1, max(2, last_step), LEFT, WIDTH - RIGHT)

    # The learning rate has an axis of its own on the right, with some room above its peak.
    peak = max(rates, default=0.0)
    y = scale(0, max(peak, 1e-12) * 1.08, HEIGHT - BOTTOM, TOP)
    drawn = sorted({*range(0, len(rates), max(1, len(rates) // MAX_POINTS)), len(rates) - 1} - {-1})
    parts = [polyline(((x(n + 1), y(rates[n])) for n in drawn), class_="tp-rate")]
    for value in (0.0, peak) if rates else ():
        text = format_digits(value, 2)
        parts.append(axis_label(WIDTH - RIGHT + 6, y(value) + 4, text, css_class="tp-axis tp-rate-axis"))

    # The first step, and the quarters of the run.
    quarters = sorted({1, *(round(last_step * quarter / 4) for quarter in range(1, 5))} - {0})
    parts += step_axis(quarters, x, HEIGHT - 12, steps_per_epoch(steps))
    parts += _loss_lines(steps, [e for e in evaluations if math.isfinite(e.loss)], x)

    next_x = math.inf
    for mark in sorted(marks, key=lambda m: -m.step):
        if next_x - x(mark.step) >= MIN_MARK_DISTANCE:  # one that is too close to the next one is omitted
            next_x = x(mark.step)
            title = f"step {mark.step}: {mark.text}"
            parts.append(vertical_line(next_x, TOP, HEIGHT - BOTTOM, "tp-mark", title))
    for row, phase in enumerate(phase_marks(steps)):
        place, title = x(phase.step), f"from step {phase.step}: {phase.text}"
        parts.append(vertical_line(place, TOP, HEIGHT - BOTTOM, "tp-phase", title))
        fits = place + CHAR_WIDTH * len(phase.text) < WIDTH
        anchor, offset = ("start", 4) if fits else ("end", -4)
        below = f"{1 + 1.2 * row:g}em"  # each name is a line lower, so that none covers another
        look = {"class_": "tp-phase-name", "text_anchor": anchor, "dy": below}
        parts.append(element("text", escape(phase.text), x=place + offset, y=TOP, **look))

    label = f"Planned: {last_step} {plural(last_step, 'step')}."
    if steps:
        first, last = steps[0], steps[-1]
        label = (
            f"Loss over {last.step} of {last_step} {plural(last_step, 'step')}: "
            f"the smoothed loss goes from {first.smoothed:.3f} to {last.smoothed:.3f}. "
            f"The last loss is {last.loss:.3f}."
        )
    return picture(WIDTH, HEIGHT, "tp-curve", label, parts, preserveAspectRatio="xMidYMid meet")


def _loss_lines(steps: Sequence[Step], evaluations: Sequence[EvaluationDone], x: Scale) -> Iterator[str]:
    drawn = thin_steps([s for s in steps if math.isfinite(s.loss)])
    if not drawn and not evaluations:
        return
    losses = sorted([*(s.loss for s in drawn), *(e.loss for e in evaluations)])
    # A single spike must not flatten the curve: the highest half percent of the losses may lie above the picture.
    low, high = losses[0], losses[max(0, math.ceil(0.995 * len(losses)) - 1)]
    gap = max(0.05 * (high - low), 0.02)
    low, high = max(0.0, low - gap), high + gap
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
        figures = f"validation loss {e.loss:.4f}"
        figures += f", perplexity {e.perplexity:.4g}" if math.isfinite(e.perplexity) else ""
        figures += "" if e.context_gain is None else f", context gain {e.context_gain:.4f}"
        yield dot(x(e.step), y(e.loss), 3.5, "tp-kept-dot", f"step {e.step}: {figures}")
    for s in drawn[:: max(1, len(drawn) // MAX_TOOLTIPS)]:
        figures = f"loss {s.loss:.4f}, smoothed {s.smoothed:.4f}, learning rate {format_digits(s.learning_rate)}"
        epoch = f", epoch {s.epoch:.4g}" if s.epoch else ""
        yield dot(x(s.step), y(s.smoothed), 6, "tp-hover", f"step {s.step}: {figures}{epoch}")


def draw_recall_strip(shares: Sequence[float]) -> str:
    """Draw a cell for each passage in the order of the data, the darker the more of it is recalled."""
    count = min(len(shares), MAX_CELLS)
    if not count:
        return ""
    width, parts, texts = WIDTH / count, [], []
    for number in range(count):
        # Neighbors share a cell, as their mean, if there are more passages than cells.
        cell = shares[len(shares) * number // count : len(shares) * (number + 1) // count]
        share = sum(cell) / len(cell)
        texts.append(f"{share:.0%}")
        place = f"{number / count:.0%} to {(number + 1) / count:.0%} of the data: {share:.0%}"
        look = {"class_": "tp-recall-cell", "fill_opacity": f"{0.08 + 0.92 * share:.2f}"}
        parts.append(bar(number * width, 0, width - (count > 1), STRIP_HEIGHT, place, **look))
    label = f"Recall by position in the data, from start to end: {', '.join(texts)}"
    return picture(WIDTH, STRIP_HEIGHT, "tp-recall", label, parts, preserveAspectRatio="none")


def draw_exam(exams: Sequence[ExamAsked]) -> str:
    """Draw for each section the share of right answers in the first exam, and below it in the last one."""
    if not exams:
        return ""
    first, last = exams[0], exams[-1]
    label = f"Exam, step {last.step}: {last.right} of {format_count(last.asked, 'question')} answered correctly"
    label += f", {first.right} at step {first.step} (pale)"
    before, parts = {section.name: section for section in first.sections}, [axis_label(0, 14, label)]
    for row, now in enumerate(last.sections, start=1):
        y, old = row * EXAM_ROW, before.get(now.name, now)
        words = f"{now.name}: {old.right} of {old.asked} right before, {now.right} of {now.asked} now"
        parts.append(axis_label(0, y + 14, shorten(now.name, EXAM_NAME_CHARS, placeholder=" ...")))
        for number, score in enumerate((old, now)):
            width, place = (WIDTH - EXAM_LEFT) * score.right / max(score.asked, 1), y + 3 + 7 * number
            look = {"class_": "tp-recall-cell", "fill_opacity": "1" if number else "0.35"}
            parts.append(bar(EXAM_LEFT, place, max(width, 1.0), 6, words, **look))
    return picture(WIDTH, EXAM_ROW * (len(last.sections) + 1), "tp-exam", label, parts)


class MapPoint(NamedTuple):
    """A row on the map of a dataset, with its tooltip; what is odd about the dataset is drawn as a ring."""

    x: float
    y: float
    cluster: int
    text: str
    is_odd: bool


def topic_color(cluster: int) -> str:
    """The color of a cluster, far from those of its neighbors in the list; the page sets its tone."""
    return f"hsl({cluster * 150 % 360 + cluster // TOPIC_COLORS * 15} 70% var(--tp-tone))"


def draw_topics(points: Sequence[MapPoint]) -> str:
    """Draw rows as dots in the colors of their clusters, and the number of each cluster in its middle."""
    x = scale(min(point.x for point in points), max(point.x for point in points), 12, WIDTH - 12)
    y = scale(min(point.y for point in points), max(point.y for point in points), MAP_HEIGHT - 12, 12)
    dots, labels = list[str](), list[str]()
    for cluster in sorted({point.cluster for point in points}):
        own = [point for point in points if point.cluster == cluster]
        looks = {False: (3.0, "tp-row"), True: (4.5, "tp-ring")}
        drawn = (dot(x(each.x), y(each.y), *looks[each.is_odd], title=each.text) for each in own)
        dots.append(element("g", "".join(drawn), style=f"--tp-topic: {topic_color(cluster)}"))
        middle = x(median(point.x for point in own)), y(median(point.y for point in own))
        labels.append(axis_label(*middle, str(cluster), "middle", "tp-phase-name"))
    label = f"Map of {len(points)} {plural(len(points), 'row')} in {len(labels)} {plural(len(labels), 'cluster')}"
    return picture(WIDTH, MAP_HEIGHT, "tp-chart", label, [*dots, *labels])


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_graph(graph: Sequence[GraphEvent], title: str, path: Path, marks: Sequence[Mark], cache: Path) -> None:
    """Draw losses, learning rate, evaluations, phases and marks; `cache` is a folder for the cache of fonts."""
    if not has_matplotlib():
        return
    if "matplotlib" not in sys.modules and "MPLCONFIGDIR" not in os.environ:
        # Read when matplotlib is imported. Otherwise, the cache would be written to the home folder.
        cache.mkdir(parents=True, exist_ok=True)
        os.environ["MPLCONFIGDIR"] = str(cache)
    # Not pyplot: it would choose a backend for windows and keep every figure in memory.
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    axes: Any = figure.add_subplot()
    steps = [event for event in graph if isinstance(event, Step)]
    evaluations = [event for event in graph if isinstance(event, EvaluationDone)]
    numbers = [s.step for s in steps]
    lines = axes.plot(numbers, [s.loss for s in steps], color="#9db8d9", linewidth=1, label="loss")
    lines += axes.plot(numbers, [s.smoothed for s in steps], color="#1f5fa8", linewidth=2, label="smoothed loss")
    if evaluations:
        style: dict[str, Any] = {"color": "#8a3fb0", "marker": "o", "markersize": 4, "label": "validation loss"}
        lines += axes.plot([e.step for e in evaluations], [e.loss for e in evaluations], **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    rate_axes: Any = axes.twinx()
    rate_axes.set_ylabel("learning rate")
    rates = [s.learning_rate for s in steps]
    lines += rate_axes.plot(numbers, rates, color="#c77d1a", linestyle="--", label="learning rate")

    style = {"rotation": 90, "fontsize": 7, "color": "#2f6f47", "ha": "right", "va": "bottom"}
    for mark in [*phase_marks(steps), *marks]:  # a vertical line with its text at the bottom
        axes.axvline(mark.step, color="#2f9e5b", linewidth=0.8, alpha=0.6)
        transform = axes.get_xaxis_transform()
        axes.text(mark.step, 0.02, mark.text, transform=transform, parse_math=False, **style)

    # The ends of epochs are labeled on a second axis at the top.
    ends: dict[int, int] = {}  # the first step at which so many epochs are done
    for step in steps:
        ends.setdefault(int(step.epoch + EPOCH_ROUNDING), step.step)
    ends.pop(0, None)
    if ends:
        every = -(-len(ends) // MAX_EPOCH_LABELS)
        shown = list(ends)[every - 1 :: every]
        top = axes.secondary_xaxis("top")
        top.set_xticks([ends[epoch] for epoch in shown], list(map(str, shown)))
        top.set_xlabel("epoch")

    axes.set_title(title, fontsize=10, parse_math=False)  # a name may contain two $
    axes.legend(lines, [line.get_label() for line in lines], loc="upper right")
    with atomic_write(path) as partial:
        figure.savefig(partial, format="png", dpi=110)
