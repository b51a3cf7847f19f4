"""The run panel: progress, charts, the queue, and the report of Check."""

from __future__ import annotations

from .charts import line_chart, small_lr_svg
from .run_panel import RunPanel
from .run_view import LOSS_LEGEND, VALIDATION_LEGEND, RunView

__all__ = ["LOSS_LEGEND", "VALIDATION_LEGEND", "RunPanel", "RunView", "line_chart", "small_lr_svg"]
