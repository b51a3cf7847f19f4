"""The run panel: progress, charts, the queue, and the report of Check."""

from __future__ import annotations

from . import plan_svg
from .charts import chart
from .run_panel import RunPanel
from .run_view import WISHES, RunView

__all__ = ["WISHES", "RunPanel", "RunView", "chart", "plan_svg"]
