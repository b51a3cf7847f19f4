"""Working copy of a tokenizer: texts to token ids with character offsets."""

from __future__ import annotations

from .tokenizer import WorkingTokenizer, make_working_tokenizer

__all__ = ["WorkingTokenizer", "make_working_tokenizer"]
