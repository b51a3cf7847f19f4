"""Reports on a run: graph, curves, verdict and HTML report."""

from __future__ import annotations

from . import curve_png, graph_file
from .curve_svg import Mark, Point, ValidationLoss, draw_curve
from .graph_file import (
    best_evaluation,
    number_or_nan,
    read_evaluations,
    step_entries,
    step_points,
    validation_losses,
)
from .report import ReportData, render_report
from .time_estimate import estimate_time
from .verdict import judge_run, read_verdict

__all__ = [
    "Mark",
    "Point",
    "ReportData",
    "ValidationLoss",
    "best_evaluation",
    "curve_png",
    "draw_curve",
    "estimate_time",
    "graph_file",
    "judge_run",
    "number_or_nan",
    "read_evaluations",
    "read_verdict",
    "render_report",
    "step_entries",
    "step_points",
    "validation_losses",
]
