"""Evaluation, perplexity and text generation with the model."""

from __future__ import annotations

from . import generation, perplexity
from .evaluator import Measuring, Testing
from .sample_generation import Asking, between_steps

__all__ = ["Asking", "Measuring", "Testing", "between_steps", "generation", "perplexity"]
