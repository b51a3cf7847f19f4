"""Plan of a run, and what is decided after each of its steps. No torch."""

from __future__ import annotations

from .run_controller import (
    Evaluation,
    Patience,
    RunController,
    SaveRequest,
    SavingRules,
    SteeringRecord,
    StepState,
    stop_reason,
)
from .run_plan import (
    BY_LENGTH,
    DATA_KEY,
    LR_SHARE_KEY,
    NEIGHBOR_PAIRS,
    BatchingPhases,
    LrPlan,
    RunPlan,
    StepLog,
    apply_to_scheduler,
    build_run_plan,
)

__all__ = [
    "BY_LENGTH",
    "DATA_KEY",
    "LR_SHARE_KEY",
    "NEIGHBOR_PAIRS",
    "BatchingPhases",
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
