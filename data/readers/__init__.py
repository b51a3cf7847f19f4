"""Readers: one module for each kind of file, from its bytes to text or rows."""

from __future__ import annotations

from . import documents, row_files, sqlite_rows, text_files, unsupported
from .json_rows import (
    CHAT_COLUMNS,
    COMPLETION_PAIR,
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
from .text_files import LoadedText, normalize_line_ends

__all__ = [
    "CHAT_COLUMNS",
    "COMPLETION_PAIR",
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
    "describe_value",
    "documents",
    "find_pair",
    "normalize_line_ends",
    "row_files",
    "sqlite_rows",
    "text_files",
    "unsupported",
]
