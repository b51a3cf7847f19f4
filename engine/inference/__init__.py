"""Measuring a model (validation split, recall, perplexity, evidence) and letting it write."""

from __future__ import annotations

from . import eval_loop, evidence, generation, perplexity, recall
from .generation import SampleGenerator, sampling_mode
from .in_run import (
    EvalScheduler,
    Evaluator,
    Meters,
    RecallScheduler,
    continuation_pairs,
    make_meters,
    plan_recall,
)
from .recall import GENERAL_TOKENS

__all__ = [
    "GENERAL_TOKENS",
    "EvalScheduler",
    "Evaluator",
    "Meters",
    "RecallScheduler",
    "SampleGenerator",
    "continuation_pairs",
    "eval_loop",
    "evidence",
    "generation",
    "make_meters",
    "perplexity",
    "plan_recall",
    "recall",
    "sampling_mode",
]
