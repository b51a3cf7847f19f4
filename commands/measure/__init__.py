"""Commands that measure a LoRA beside the model without it."""

from __future__ import annotations

from . import evidence, perplexity, recall

__all__ = ["evidence", "perplexity", "recall"]
