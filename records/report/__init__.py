"""Reports on a run: graph, curves, verdict and HTML report."""

from __future__ import annotations

from . import curve_png, graph_file
from .curve_svg import AsideLoss, Mark, Point, svg
from .graph_file import aside_losses, best_of, evaluations_of, number, points_of, steps_of
from .report import Story, page
from .time_estimate import expected_time
from .verdict import judge_run, read_verdict

__all__ = [
    "AsideLoss",
    "Mark",
    "Point",
    "Story",
    "aside_losses",
    "best_of",
    "curve_png",
    "evaluations_of",
    "expected_time",
    "graph_file",
    "judge_run",
    "number",
    "page",
    "points_of",
    "read_verdict",
    "steps_of",
    "svg",
]
