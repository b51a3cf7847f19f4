"""What is measured during a run, beside its loss."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ...core.jobs import Job, Request
from ..compute import ModelCapabilities
from ..plan import RunPlan
from .eval_loop import EvalLoop, batch_limit
from .evaluator import Evaluator
from .recall import RecallMeter, pick_recall_passages


@dataclass(frozen=True)
class Meters:
    """Meters of a run; None for what its data or settings don't allow."""

    evaluator: Evaluator | None
    recall: RecallMeter | None


def make_meters(run_plan: RunPlan, model: Any, capabilities: ModelCapabilities, job: Job) -> Meters:
    """Make the meters of a run for a model in training."""
    evaluator = Evaluator(run_plan, model, capabilities, job) if len(run_plan.data.validation) else None
    settings, card = run_plan.settings, run_plan.card
    passages = pick_recall_passages(run_plan.data, settings.aside.recall_passages, card)

    def make_eval_loop(ended_by: Request) -> EvalLoop:
        return EvalLoop(model, capabilities, batch_limit(settings), lambda: job.control.asked(ended_by))

    return Meters(evaluator, RecallMeter(make_eval_loop, passages) if passages else None)
