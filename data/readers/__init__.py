"""Readers: one module for each kind of file, from its bytes to text or rows."""

from __future__ import annotations

from . import chat_exports, csv_rows, documents, parquet, sqlite_rows, text_files, unsupported
from .column_names import CHAT_COLUMNS, COMPLETION_PAIR, CONTEXT_COLUMNS, TEXT_COLUMNS, find_pair
from .json_rows import Row, Table, describe_value, read_json, read_jsonl
from .text_files import LoadedText, normalize_line_ends

__all__ = [
    "CHAT_COLUMNS",
    "COMPLETION_PAIR",
    "CONTEXT_COLUMNS",
    "TEXT_COLUMNS",
    "LoadedText",
    "Row",
    "Table",
    "chat_exports",
    "csv_rows",
    "describe_value",
    "documents",
    "find_pair",
    "normalize_line_ends",
    "parquet",
    "read_json",
    "read_jsonl",
    "sqlite_rows",
    "text_files",
    "unsupported",
]
