"""Plan of a run: settings, learning rates, step log, rules for saving and stopping. No torch."""

from __future__ import annotations

from .lr_plan import SHARE, Rates, give
from .run_controller import Steering
from .run_plan import DATA, Blueprint, blueprint
from .saving_rules import Evaluation, Moment
from .step_log import Course, graph_entry

__all__ = [
    "DATA",
    "SHARE",
    "Blueprint",
    "Course",
    "Evaluation",
    "Moment",
    "Rates",
    "Steering",
    "blueprint",
    "give",
    "graph_entry",
]
