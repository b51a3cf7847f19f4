"""The run panel: progress, charts, the queue, and the report of Check."""

from .charts import line_chart, loss_curve, small_lr_svg
from .run_panel import RunPanel
from .run_view import RunView

__all__ = ["RunPanel", "RunView", "line_chart", "loss_curve", "small_lr_svg"]
