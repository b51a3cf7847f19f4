"""Rows to token ids: row schemas, chat templates, prompt formats, and the loss mask."""

from __future__ import annotations

from . import row_dataset
from .chat_templates import CHATML
from .encoding import PrepareContext, RowReport, Tokenizer
from .preferences import refuse_without_preferences
from .prompt_formats import PROMPT_COUNT, Prompt, PromptStyle, chat_prompt_style, detect_prompt_style, make_prompts
from .row_dataset import RowDataset, load_row_dataset
from .text_quality import inspect_texts

__all__ = [
    "CHATML",
    "PROMPT_COUNT",
    "PrepareContext",
    "Prompt",
    "PromptStyle",
    "RowDataset",
    "RowReport",
    "Tokenizer",
    "chat_prompt_style",
    "detect_prompt_style",
    "inspect_texts",
    "load_row_dataset",
    "make_prompts",
    "refuse_without_preferences",
    "row_dataset",
]
