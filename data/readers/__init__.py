"""Readers: one module for each kind of file, from its bytes to text or rows."""

from __future__ import annotations

from . import documents, json_rows, row_files, text_files, unsupported
from .binary_rows import is_in_use
from .chat_logs import ChatOptions, count_replies, preference_rows
from .json_rows import (
    Row,
    Table,
    describe_value,
    find_pair,
)
from .reader_process import as_data_error, exceeds_depth, reader_process, shorten
from .text_files import LoadedText, normalize_line_ends

__all__ = [
    "ChatOptions",
    "LoadedText",
    "Row",
    "Table",
    "as_data_error",
    "count_replies",
    "describe_value",
    "documents",
    "exceeds_depth",
    "find_pair",
    "is_in_use",
    "json_rows",
    "normalize_line_ends",
    "preference_rows",
    "reader_process",
    "row_files",
    "shorten",
    "text_files",
    "unsupported",
]
