"""The run panel: progress, charts, the queue, and the report of Check."""

from .charts import line_chart as line_chart
from .charts import loss_curve as loss_curve
from .charts import small_lr_svg as small_lr_svg
from .run_panel import RunPanel as RunPanel
from .run_view import RunView as RunView
