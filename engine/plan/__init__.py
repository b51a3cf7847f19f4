"""Plan of a run, and what is decided after each of its steps. No torch."""

from __future__ import annotations

from .run_controller import (
    BestStep,
    Evaluation,
    LossDrop,
    Patience,
    RunController,
    SavingRules,
    Steering,
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
)

__all__ = [
    "BY_LENGTH",
    "DATA_KEY",
    "LR_SHARE_KEY",
    "NEIGHBOR_PAIRS",
    "BatchingPhases",
    "BestStep",
    "Evaluation",
    "LossDrop",
    "LrPlan",
    "Patience",
    "RunController",
    "RunPlan",
    "SavingRules",
    "Steering",
    "StepLog",
    "StepState",
    "apply_to_scheduler",
    "stop_reason",
]
