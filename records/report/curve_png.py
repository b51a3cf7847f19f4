"""training_graph.png: the curves of a run, if matplotlib is installed."""

from __future__ import annotations

import importlib.util
import math
import os
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.files import atomic_write
from .curve_svg import Mark
from .graph_file import read_evaluations, step_entries

Graph = Sequence[Mapping[str, Any]]


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
    loss = figure.add_subplot()
    _plot_losses(loss, graph)
    rate = loss.twinx()
    _plot_rates(rate, graph)
    for mark in [*phase_marks(graph), *marks]:
        _draw_mark(loss, mark)
    loss.set_title(title, fontsize=10, parse_math=False)  # a name may contain two $
    lines = [line for line in (*loss.get_lines(), *rate.get_lines()) if not str(line.get_label()).startswith("_")]
    loss.legend(lines, [str(line.get_label()) for line in lines], loc="upper right")
    with atomic_write(path) as partial:
        figure.savefig(partial, format="png", dpi=110)


def phase_marks(graph: Graph) -> list[Mark]:
    """Return the step at which each phase of the order begins, if there are phases."""
    marks: list[Mark] = []
    for entry in step_entries(graph):
        if "phase" in entry and (not marks or marks[-1].text != entry["phase"]):
            marks.append(Mark(entry["current_steps"], entry["phase"]))
    return marks


def _plot_losses(axes: Any, graph: Graph) -> None:
    entries, evaluations = step_entries(graph), read_evaluations(graph)
    steps = [entry["current_steps"] for entry in entries]
    axes.plot(steps, _floats(e["loss"] for e in entries), color="#9db8d9", linewidth=1, label="loss")
    smoothed = _floats(e["smoothed_loss"] for e in entries)
    axes.plot(steps, smoothed, color="#1f5fa8", linewidth=2, label="smoothed loss")
    if evaluations:
        eval_steps, eval_losses = [e.step for e in evaluations], [e.loss for e in evaluations]
        axes.plot(
            eval_steps, eval_losses, color="#8a3fb0", marker="o", markersize=4, label="loss on the part kept aside"
        )
    axes.set_xlabel("step")
    axes.set_ylabel("loss")


def _floats(values: Any) -> list[float]:
    return [math.nan if value is None else value for value in values]


def _plot_rates(axes: Any, graph: Graph) -> None:
    entries = step_entries(graph)
    steps, rates = [e["current_steps"] for e in entries], [e["learning_rate"] for e in entries]
    axes.plot(steps, rates, color="#c77d1a", linestyle="--", label="learning rate")
    axes.set_ylabel("learning rate")


def _draw_mark(axes: Any, mark: Mark) -> None:
    """Draw a vertical line with its text at the bottom."""
    axes.axvline(mark.step, color="#2f9e5b", linewidth=0.8, alpha=0.6, label="_mark")
    transform = axes.get_xaxis_transform()
    style = {"rotation": 90, "fontsize": 7, "color": "#2f6f47", "ha": "right", "va": "bottom"}
    axes.text(mark.step, 0.02, mark.text, transform=transform, parse_math=False, **style)
