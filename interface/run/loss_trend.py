"""The trend of the loss of a run, in one sentence."""

from __future__ import annotations

import math
from collections.abc import Sequence

from ...records.report import Point

LEVEL = 0.02
BY_HEART = 0.5


def trend(points: Sequence[Point], steps: int) -> str:
    """Describe how the smoothed loss changed over the last tenth of the run, and give advice."""
    if not points:
        return ""
    last = points[-1]
    if not math.isfinite(last.loss):
        return "The loss is not a number any more. Stop, and start again with a lower learning rate."
    if len(points) < 5:
        return "Too early to say how it goes."
    reference = points[max(0, len(points) - 1 - max(4, steps // 10))]
    change = (last.smoothed - reference.smoothed) / max(reference.smoothed, 1e-9)
    return _describe(change, last, steps)


def _describe(change: float, last: Point, steps: int) -> str:
    early = last.step <= max(5, steps // 10)
    if last.smoothed < BY_HEART:
        return "The loss is very low: the text is being learned by heart."
    if change < -LEVEL:
        return "The loss is falling" + (", as it should at the beginning." if early else ": it is learning.")
    if change <= LEVEL:
        return "The loss is level" + (", normal at the beginning." if early else ": little more is being learned.")
    if early:
        return "The loss is rising, which may happen in the first steps."
    return "The loss is rising. If that goes on, stop and take a lower learning rate."


def before(points: Sequence[Point], seconds: float, now: float) -> Point | None:
    """The last point at least `seconds` ago, or None if the run is younger."""
    earlier = [p for p in points if 0 < p.at <= now - seconds]  # points from before a resume have no time
    return earlier[-1] if earlier else None
