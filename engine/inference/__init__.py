"""Measuring a model (validation split, recall, perplexity, evidence) and letting it write."""

from __future__ import annotations

from . import eval_loop, evidence, generation, perplexity
from .evidence import GENERAL_TOKENS
from .generation import SampleCallback
from .in_run import RunMeasurements, continuation_pairs, plan_recall
from .perplexity import prepare_for_host

__all__ = [
    "GENERAL_TOKENS",
    "RunMeasurements",
    "SampleCallback",
    "continuation_pairs",
    "eval_loop",
    "evidence",
    "generation",
    "perplexity",
    "plan_recall",
    "prepare_for_host",
]
