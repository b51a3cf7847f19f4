"""Reports on a run: graph, curves, verdict and HTML report."""

from __future__ import annotations

from . import charts, graph_file
from .charts import Mark, draw_curve
from .graph_file import (
    GraphItem,
    Workload,
    best_evaluation,
    estimate_time,
    graph_entries,
    graph_entry,
    read_evaluations,
    read_steps,
)
from .report import ReportData, peak_name, render_report, run_speed, write_missing_report
from .verdict import judge_live, judge_run, read_verdict

__all__ = [
    "GraphItem",
    "Mark",
    "ReportData",
    "Workload",
    "best_evaluation",
    "charts",
    "draw_curve",
    "estimate_time",
    "graph_entries",
    "graph_entry",
    "graph_file",
    "judge_live",
    "judge_run",
    "peak_name",
    "read_evaluations",
    "read_steps",
    "read_verdict",
    "render_report",
    "run_speed",
    "write_missing_report",
]
