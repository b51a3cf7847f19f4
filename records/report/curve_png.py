"""training_graph.png: the curves of a run, if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from ...core.files import atomic_write
from .graph_file import read_evaluations, read_steps
from .svg import Mark, phase_marks

MAX_EPOCH_LABELS = 20
EPOCH_ROUNDING = 1e-3  # the graph stores epochs with four digits


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_graph(
    graph: Sequence[Mapping[str, Any]], title: str, path: Path, marks: Sequence[Mark], cache: Path
) -> None:
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
    steps, evaluations = read_steps(graph), read_evaluations(graph)
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
