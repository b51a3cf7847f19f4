"""Readers: one module for each kind of file, from its bytes to text or rows."""

from __future__ import annotations

from . import documents, row_files, text_files, unsupported
from .binary_rows import is_in_use
from .json_rows import (
    CHAT_COLUMNS,
    COMPLETION_PAIRS,
    CONTEXT_COLUMNS,
    CONVERSATION_COLUMNS,
    ID_COLUMNS,
    MESSAGE_ID_COLUMNS,
    PARENT_COLUMNS,
    TEXT_COLUMNS,
    TURN_COLUMNS,
    Row,
    Table,
    describe_value,
    find_pair,
)
from .limits import as_data_error, exceeds_depth, shorten
from .reader_process import reader_process
from .text_files import LoadedText, normalize_line_ends

__all__ = [
    "CHAT_COLUMNS",
    "COMPLETION_PAIRS",
    "CONTEXT_COLUMNS",
    "CONVERSATION_COLUMNS",
    "ID_COLUMNS",
    "MESSAGE_ID_COLUMNS",
    "PARENT_COLUMNS",
    "TEXT_COLUMNS",
    "TURN_COLUMNS",
    "LoadedText",
    "Row",
    "Table",
    "as_data_error",
    "describe_value",
    "documents",
    "exceeds_depth",
    "find_pair",
    "is_in_use",
    "normalize_line_ends",
    "reader_process",
    "row_files",
    "shorten",
    "text_files",
    "unsupported",
]
