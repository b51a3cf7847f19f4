"""Working copy of a tokenizer: texts to token ids with character offsets."""

from __future__ import annotations

from .tokenizer import WorkingTokenizer, load_encoder, make_working_tokenizer

__all__ = ["WorkingTokenizer", "load_encoder", "make_working_tokenizer"]
