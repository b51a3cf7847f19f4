"""Reports on a run: graph, curves, verdict and HTML report."""

from . import charts as charts
from . import graph_file as graph_file
from .charts import Mark as Mark
from .charts import draw_curve as draw_curve
from .charts import draw_exam as draw_exam
from .graph_file import GraphEvent as GraphEvent
from .graph_file import Workload as Workload
from .graph_file import best_evaluation as best_evaluation
from .graph_file import estimate_time as estimate_time
from .graph_file import graph_entry as graph_entry
from .graph_file import graph_events as graph_events
from .graph_file import read_evaluations as read_evaluations
from .graph_file import read_steps as read_steps
from .report import peak_name as peak_name
from .report import run_speed as run_speed
from .report import write_missing_report as write_missing_report
from .report import write_report as write_report
from .verdict import judge_live as judge_live
from .verdict import judge_run as judge_run
from .verdict import read_verdict as read_verdict
