"""Evaluation, perplexity and text generation with the model."""

from __future__ import annotations

from . import generation, perplexity
from .evaluator import EvalScheduler, Evaluator
from .sample_generation import SampleGenerator, sampling_mode

__all__ = ["EvalScheduler", "Evaluator", "SampleGenerator", "generation", "perplexity", "sampling_mode"]
