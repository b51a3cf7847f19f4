"""Rows to token ids: row schemas, chat templates, prompt formats, and the loss mask."""

from __future__ import annotations

from . import row_dataset
from .chat_templates import CHATML
from .encoding import Counts, RowTokenizer
from .prompt_style import Prompt, Speaking, in_a_chat, prompts, speaking
from .row_dataset import RowSet, row_set
from .text_quality import Inspector, refusals

__all__ = [
    "CHATML",
    "Counts",
    "Inspector",
    "Prompt",
    "RowSet",
    "RowTokenizer",
    "Speaking",
    "in_a_chat",
    "prompts",
    "refusals",
    "row_dataset",
    "row_set",
    "speaking",
]
