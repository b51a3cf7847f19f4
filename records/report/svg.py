"""SVG pictures without a plotting library: elements, scales, lines and axes, colored by CSS classes."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from html import escape

Scale = Callable[[float], float]
"""Maps a value to a coordinate."""
MAX_EPOCH_TICKS = 6


def picture(width: int, height: int, css_class: str, label: str, parts: Iterable[str], **more: str) -> str:
    """A whole picture; screen readers read the label."""
    view_box, content = f"0 0 {width} {height}", "".join(parts)
    return element("svg", content, viewBox=view_box, role="img", class_=css_class, aria_label=label, **more)


def element(tag: str, content: str = "", *, title: str = "", **attributes: float | str | None) -> str:
    """An element with rounded coordinates; `title` is its tooltip, `text_anchor` becomes text-anchor."""
    values = "".join(
        f' {name.rstrip("_").replace("_", "-")}="{escape(_rounded(value))}"'
        for name, value in attributes.items()
        if value is not None
    )
    inside = (f"<title>{escape(title)}</title>" if title else "") + content
    return f"<{tag}{values}>{inside}</{tag}>" if inside else f"<{tag}{values}/>"


def _rounded(value: float | str) -> str:
    return f"{value:.1f}" if isinstance(value, float) else str(value)


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
    epochs = epoch_ticks(steps[0] / steps_per_epoch, steps[-1] / steps_per_epoch)
    by_epoch = [axis_label(x(epoch * steps_per_epoch), baseline, f"{epoch:.4g}", "middle") for epoch in epochs]
    yield element("g", "".join(by_step), class_="tp-by-step")
    yield element("g", "".join(by_epoch), class_="tp-by-epoch")


def epoch_ticks(first: float, last: float) -> list[float]:
    """At most `MAX_EPOCH_TICKS` round numbers of epochs in a range; its end if there are none."""
    if last <= first:
        return [last]
    least = (last - first) / (MAX_EPOCH_TICKS - 1)
    power = 10.0 ** math.floor(math.log10(least))
    size = next(factor * power for factor in (1, 2, 5, 10) if factor * power >= least * 0.999)
    numbers = range(math.ceil(first / size), math.floor(last / size + 1e-3) + 1)
    return [float(f"{number * size:.6g}") for number in numbers] or [last]


def scale(low: float, high: float, start: float, end: float) -> Scale:
    """Map values between `low` and `high` to coordinates; of an empty range to the middle."""
    if high <= low:
        return lambda _: (start + end) / 2
    return lambda value: start + (min(max(value, low), high) - low) / (high - low) * (end - start)
