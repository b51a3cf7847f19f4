"""Measuring a model (validation split, recall, perplexity, evidence) and letting it write."""

from __future__ import annotations

from . import eval_loop, evidence, generation, perplexity, recall
from .generation import SampleGenerator
from .in_run import Evaluations, Recalls, continuation_pairs, plan_recall
from .recall import GENERAL_TOKENS

__all__ = [
    "GENERAL_TOKENS",
    "Evaluations",
    "Recalls",
    "SampleGenerator",
    "continuation_pairs",
    "eval_loop",
    "evidence",
    "generation",
    "perplexity",
    "plan_recall",
    "recall",
]
