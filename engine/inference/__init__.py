"""Evaluation, perplexity and text generation with the model."""

from __future__ import annotations

from . import eval_loop, evidence, generation, perplexity, recall, recall_of_lora
from .context_gain import continuation_pairs
from .evaluator import EvalScheduler, Evaluator
from .general_loss import GENERAL_TOKENS
from .meters import Meters, make_meters
from .recall_scheduler import RecallScheduler, plan_recall
from .sample_generation import SampleGenerator, sampling_mode

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
    "recall_of_lora",
    "sampling_mode",
]
