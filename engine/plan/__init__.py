"""Plan of a run: settings, learning rates, step log, rules for saving and stopping. No torch."""

from __future__ import annotations

from .lr_plan import LR_SHARE_KEY, LrPlan, apply_to_scheduler
from .run_controller import RunController, SteeringRecord
from .run_plan import DATA_KEY, RunPlan, build_run_plan
from .step_log import StepLog
from .step_rules import Evaluation, Patience, SaveRequest, SavingRules, StepState, stop_reason

__all__ = [
    "DATA_KEY",
    "LR_SHARE_KEY",
    "Evaluation",
    "LrPlan",
    "Patience",
    "RunController",
    "RunPlan",
    "SaveRequest",
    "SavingRules",
    "SteeringRecord",
    "StepLog",
    "StepState",
    "apply_to_scheduler",
    "build_run_plan",
    "stop_reason",
]
