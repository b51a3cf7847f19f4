"""Recall along the data, as a strip of colored cells in SVG."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise

from . import svg

WIDTH, HEIGHT = 640, 26
MAX_CELLS = 160
GAP = 1.0


def draw_recall_strip(shares: Sequence[float]) -> str:
    """Draw a cell for each passage in the order of the data, the darker the more of it is recalled."""
    cells = _merge(shares)
    if not cells:
        return ""
    width = WIDTH / len(cells)
    parts = [
        svg.bar(
            number * width,
            0,
            width - GAP * (len(cells) > 1),
            HEIGHT,
            f"{_place(number, len(cells))}: {share:.0%}",
            class_="tp-recall-cell",
            fill_opacity=f"{0.08 + 0.92 * share:.2f}",
        )
        for number, share in enumerate(cells)
    ]
    label = f"Recall by position in the data, from start to end: {', '.join(f'{share:.0%}' for share in cells)}"
    return svg.picture(WIDTH, HEIGHT, "tp-recall", label, parts, preserveAspectRatio="none")


def _place(number: int, count: int) -> str:
    return f"{number / count:.0%} to {(number + 1) / count:.0%} of the data"


def _merge(shares: Sequence[float]) -> list[float]:
    """Average neighbors if there are more passages than cells."""
    count = min(len(shares), MAX_CELLS)
    bounds = [len(shares) * n // count for n in range(count + 1)] if count else []
    groups = [shares[a:b] for a, b in pairwise(bounds)]
    return [sum(group) / len(group) for group in groups]
