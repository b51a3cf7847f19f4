"""The curves that are looked at less often: gradient norm, losses apart, learning rate as it was."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from html import escape
from itertools import cycle

from ...core.jobs import Evaluated, Progress
from ..base import markup

Places = list[tuple[int, float]]
WIDTH, HEIGHT, LEFT, BASE = 640, 130, 52, 108
MOST_POINTS, MOST_DOTS, OF_EACH = 240, 40, 25
COLOURS = ("#2f74c0", "#c98a10", "#2f9e5b", "#7a4fb5", "#cf3f3f", "#3a8f8f")


class MoreCurves:
    """Keeps what it is told, and works it out when somebody looks: most steps are never looked at."""

    def __init__(self) -> None:
        self._steps: list[Progress] = []
        self._evaluated: list[Evaluated] = []

    def step(self, event: Progress) -> None:
        self._steps.append(event)

    def evaluated(self, event: Evaluated) -> None:
        self._evaluated.append(event)

    def html(self) -> str:
        """Every curve that there is something of."""
        stretches = _stretches(self._steps)
        rates = [(part[-1].step, part[-1].learning_rate) for part in stretches]
        return "".join(
            [
                chart("Loss of each data set", _by_source(stretches)),
                *self._kept_aside(),
                chart("Gradient norm", {"gradient norm": _norms(stretches)}),
                chart("Learning rate as it was", {"learning rate": rates}),
            ]
        )

    def _kept_aside(self) -> Iterator[str]:
        told = self._evaluated
        names = dict.fromkeys(name for e in told for name in e.by_source)
        apart = {name: [(e.step, e.by_source[name]) for e in told if name in e.by_source] for name in names}
        yield chart("Kept aside: loss of each data set", apart)
        yield chart("Kept aside: perplexity", {"perplexity": [(e.step, e.perplexity) for e in told]})
        yield chart("Kept aside: tokens guessed right, %", {"right": [(e.step, 100 * e.accuracy) for e in told]})


def _stretches(steps: Sequence[Progress]) -> list[Sequence[Progress]]:
    """The run in at most so many parts, of each some steps: these curves are for their course."""
    length = max(1, math.ceil(len(steps) / MOST_POINTS))
    every = max(1, length // OF_EACH)
    return [steps[n : n + length : every] for n in range(0, len(steps), length)]


def _by_source(stretches: Sequence[Sequence[Progress]]) -> dict[str, Places]:
    found: dict[str, Places] = {}
    for part in stretches:
        apart: dict[str, list[float]] = {}
        for event in part:
            for name, loss in event.by_source.items():
                apart.setdefault(name, []).append(loss)
        for name, losses in apart.items():
            found.setdefault(name, []).append((part[-1].step, _mean(losses)))
    return found


def _norms(stretches: Sequence[Sequence[Progress]]) -> Places:
    known = [(part[-1].step, [e.gradient_norm for e in part if e.gradient_norm is not None]) for part in stretches]
    return [(step, _mean(norms)) for step, norms in known if norms]


def _mean(values: Sequence[float]) -> float:
    return sum(values) / len(values)


@dataclass(frozen=True)
class Frame:
    """What is drawn where."""

    first: int
    last: int
    low: float
    high: float

    @staticmethod
    def around(series: Mapping[str, Places]) -> Frame:
        steps = [step for places in series.values() for step, _ in places]
        values = [value for places in series.values() for _, value in places]
        return Frame(min(steps), max(steps), min(values), max(values))

    def x(self, step: int) -> float:
        return LEFT + (WIDTH - 12 - LEFT) * (step - self.first) / max(1, self.last - self.first)

    def y(self, value: float) -> float:
        height = self.high - self.low
        return BASE - (BASE - 10) * ((value - self.low) / height if height > 0 else 0.5)


def chart(title: str, series: Mapping[str, Places]) -> str:
    """Lines over the steps, under one title; nothing where there is nothing to draw."""
    drawn = {name: [p for p in places if math.isfinite(p[1])] for name, places in series.items()}
    drawn = {name: places for name, places in drawn.items() if places}
    if not drawn:
        return ""
    if all(len(places) == 1 for places in drawn.values()):
        return _one_value(title, drawn)
    frame = Frame.around(drawn)
    lines = "".join(_line(name, drawn[name], frame, colour) for name, colour in _coloured(drawn))
    return (
        f'<p class="tp-quiet tp-key"><span>{escape(title)}</span> {_key(drawn)}</p>'
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" role="img" class="tp-chart" '
        f'aria-label="{escape(_said(title, drawn))}">{"".join(_axis(frame))}{lines}</svg>'
    )


def _one_value(title: str, drawn: Mapping[str, Places]) -> str:
    """A single point is no curve."""
    several = len(drawn) > 1
    said = "; ".join(
        f"{name + ' ' if several else ''}{value:.4g} at step {step}" for name, ((step, value),) in drawn.items()
    )
    return markup.paragraph(f"{title}, one value so far: {said}", quiet=True)


def _line(name: str, places: Places, frame: Frame, colour: str) -> str:
    shown = "tp-hover" if len(places) > 1 else "tp-point"
    points = " ".join(f"{frame.x(step):.1f},{frame.y(value):.1f}" for step, value in places)
    dots = "".join(
        f'<circle cx="{frame.x(step):.1f}" cy="{frame.y(value):.1f}" r="5" class="{shown}" style="color:{colour}">'
        f"<title>step {step}: {escape(name)} {value:.4g}</title></circle>"
        for step, value in places[:: max(1, len(places) // MOST_DOTS)]
    )
    return f'<polyline points="{points}" style="stroke:{colour}"/>{dots}'


def _axis(frame: Frame) -> Iterator[str]:
    for value in sorted({frame.low, frame.high}):
        y = frame.y(value)
        yield f'<line class="tp-grid" x1="{LEFT}" x2="{WIDTH - 8}" y1="{y:.1f}" y2="{y:.1f}"/>'
        yield f'<text class="tp-axis" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{value:.3g}</text>'
    for step in {frame.first, frame.last}:
        x = frame.x(step)
        yield f'<text class="tp-axis" text-anchor="middle" x="{x:.1f}" y="{HEIGHT - 6}">{step}</text>'


def _key(drawn: Mapping[str, Places]) -> str:
    if len(drawn) == 1:
        return ""
    return markup.legend((colour, name) for name, colour in _coloured(drawn))


def _coloured(drawn: Mapping[str, Places]) -> Iterator[tuple[str, str]]:
    return zip(drawn, cycle(COLOURS), strict=False)


def _said(title: str, drawn: Mapping[str, Places]) -> str:
    """For those who do not see it."""
    ends = "; ".join(f"{name} from {p[0][1]:.4g} to {p[-1][1]:.4g}" for name, p in drawn.items())
    return f"{title}: {ends}"
