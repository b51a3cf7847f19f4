"""training_graph.png: the curves of a run, if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from itertools import pairwise
from pathlib import Path
from typing import Any

from ...core.files import atomic_write
from ...core.jobs import EvaluationDone, Step
from .curve_svg import Mark, phase_marks
from .graph_file import read_evaluations, read_steps

Graph = Sequence[Mapping[str, Any]]
MAX_EPOCH_LABELS = 20
EPOCH_ROUNDING = 1e-3


def has_matplotlib() -> bool:
    return importlib.util.find_spec("matplotlib") is not None


def draw_graph(
    graph: Graph, title: str, path: Path, marks: Sequence[Mark] = (), *, cache: Path | None = None
) -> bool:
    """Draw losses, learning rate, evaluations, phases and marks; return False if matplotlib is not installed."""
    if not has_matplotlib():
        return False
    with _font_cache_in(cache):
        _draw_figure(graph, title, path, marks)
    return True


@contextmanager
def _font_cache_in(folder: Path | None) -> Iterator[None]:
    """Set the folder for the font cache of matplotlib, so that nothing is written to the home folder."""
    if folder is None or "matplotlib" in sys.modules or "MPLCONFIGDIR" in os.environ:
        yield
        return
    folder.mkdir(parents=True, exist_ok=True)
    os.environ["MPLCONFIGDIR"] = str(folder)
    try:
        yield
    finally:
        del os.environ["MPLCONFIGDIR"]


def _draw_figure(graph: Graph, title: str, path: Path, marks: Sequence[Mark]) -> None:
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(10, 5), layout="constrained")
    FigureCanvasAgg(figure)
    loss_axes, steps = figure.add_subplot(), read_steps(graph)
    rate_axes = loss_axes.twinx()
    lines = [*_plot_losses(loss_axes, steps, read_evaluations(graph)), *_plot_rates(rate_axes, steps)]
    for mark in [*phase_marks(steps), *marks]:
        _draw_mark(loss_axes, mark)
    _draw_epochs(loss_axes, steps)
    loss_axes.set_title(title, fontsize=10, parse_math=False)  # a name may contain two $
    loss_axes.legend(lines, [line.get_label() for line in lines], loc="upper right")
    with atomic_write(path) as partial:
        figure.savefig(partial, format="png", dpi=110)


def epoch_ends(steps: Sequence[Step]) -> dict[int, int]:
    """Return the epochs that are done, by the step that ends each; a stored epoch is rounded."""
    epochs = [(step.step, int(step.epoch + EPOCH_ROUNDING)) for step in steps]
    pairs = pairwise([(0, 0), *epochs])
    return {step: epoch for (_, previous), (step, epoch) in pairs if epoch > previous}


def _draw_epochs(axes: Any, steps: Sequence[Step]) -> None:
    """Label the ends of epochs on a second axis at the top, at most MAX_EPOCH_LABELS of them."""
    ends = epoch_ends(steps)
    if not ends:
        return
    every = -(-len(ends) // MAX_EPOCH_LABELS)
    shown = list(ends)[every - 1 :: every]
    top = axes.secondary_xaxis("top")
    top.set_xticks(shown, [str(ends[step]) for step in shown])
    top.set_xlabel("epoch")


def _plot_losses(axes: Any, steps: Sequence[Step], evaluations: Sequence[EvaluationDone]) -> Any:
    numbers, smoothed = [s.step for s in steps], [s.smoothed for s in steps]
    lines = axes.plot(numbers, [s.loss for s in steps], color="#9db8d9", linewidth=1, label="loss")
    lines += axes.plot(numbers, smoothed, color="#1f5fa8", linewidth=2, label="smoothed loss")
    if evaluations:
        losses = [e.loss for e in evaluations]
        style = {"color": "#8a3fb0", "marker": "o", "markersize": 4, "label": "validation loss"}
        lines += axes.plot([e.step for e in evaluations], losses, **style)
    axes.set_xlabel("step")
    axes.set_ylabel("loss")
    return lines


def _plot_rates(axes: Any, steps: Sequence[Step]) -> Any:
    rates = [s.learning_rate for s in steps]
    axes.set_ylabel("learning rate")
    return axes.plot([s.step for s in steps], rates, color="#c77d1a", linestyle="--", label="learning rate")


def _draw_mark(axes: Any, mark: Mark) -> None:
    """Draw a vertical line with its text at the bottom."""
    axes.axvline(mark.step, color="#2f9e5b", linewidth=0.8, alpha=0.6)
    transform = axes.get_xaxis_transform()
    style = {"rotation": 90, "fontsize": 7, "color": "#2f6f47", "ha": "right", "va": "bottom"}
    axes.text(mark.step, 0.02, mark.text, transform=transform, parse_math=False, **style)
