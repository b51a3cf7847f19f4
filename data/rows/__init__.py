"""Rows to token ids: row schemas, chat templates, prompt formats, and the loss mask."""

from __future__ import annotations

from . import row_dataset
from .chat_templates import CHATML
from .encoding import PrepareContext, RowReport, Tokenizer
from .prompt_formats import PROMPT_COUNT, Prompt, PromptStyle, chat_prompt_style, detect_prompt_style, make_prompts
from .row_dataset import RowDataset, load_row_dataset
from .row_schema import ROLES, RowSchema, detect_schema, parse_list
from .text_quality import MOJIBAKE, inspect_texts, load_refusal_phrases

__all__ = [
    "CHATML",
    "MOJIBAKE",
    "PROMPT_COUNT",
    "ROLES",
    "PrepareContext",
    "Prompt",
    "PromptStyle",
    "RowDataset",
    "RowReport",
    "RowSchema",
    "Tokenizer",
    "chat_prompt_style",
    "detect_prompt_style",
    "detect_schema",
    "inspect_texts",
    "load_refusal_phrases",
    "load_row_dataset",
    "make_prompts",
    "parse_list",
    "row_dataset",
]
