"""Readers: one module for each kind of file, from its bytes to text or rows."""

from __future__ import annotations

from . import chat_exports, csv_rows, documents, parquet, sqlite_rows, text_files, unsupported
from .column_names import CHAT_COLUMNS, COMPLETION, MORE_COLUMNS, TEXT_COLUMNS, pair_in
from .json_rows import Row, Table, json_table, jsonl_table, kind
from .text_files import ReadText, one_line_end

__all__ = [
    "CHAT_COLUMNS",
    "COMPLETION",
    "MORE_COLUMNS",
    "TEXT_COLUMNS",
    "ReadText",
    "Row",
    "Table",
    "chat_exports",
    "csv_rows",
    "documents",
    "json_table",
    "jsonl_table",
    "kind",
    "one_line_end",
    "pair_in",
    "parquet",
    "sqlite_rows",
    "text_files",
    "unsupported",
]
