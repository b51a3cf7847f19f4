"""Reports on a run: graph, curves, verdict and HTML report."""

from __future__ import annotations

from . import curve_png, svg
from .graph_file import RunGraph, best_evaluation, graph_entry, read_evaluations, read_steps
from .report import ReportData, peak_name, render_report, run_speed, write_missing_report
from .svg import Mark, draw_curve, draw_recall_strip, steps_per_epoch
from .time_estimate import Workload, estimate_time, measured_speeds
from .verdict import judge_live, judge_run, read_verdict

__all__ = [
    "Mark",
    "ReportData",
    "RunGraph",
    "Workload",
    "best_evaluation",
    "curve_png",
    "draw_curve",
    "draw_recall_strip",
    "estimate_time",
    "graph_entry",
    "judge_live",
    "judge_run",
    "measured_speeds",
    "peak_name",
    "read_evaluations",
    "read_steps",
    "read_verdict",
    "render_report",
    "run_speed",
    "steps_per_epoch",
    "svg",
    "write_missing_report",
]
