"""Files of rows: choose the reader by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...settings.columns import Columns
from . import chat_exports, csv_rows, parquet, sqlite_rows
from .json_rows import Table, read_json, read_jsonl

READERS: Mapping[str, Callable[[Path, str], Table]] = {
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": csv_rows.read_table,
    ".tsv": csv_rows.read_table,
    ".parquet": parquet.read_table,
}
JSON_SUFFIXES = frozenset({".json", ".jsonl", ".ndjson"})
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
SUFFIXES = (*READERS, *DATABASE_SUFFIXES)


def is_row_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_table(path: Path, name: str, columns: Columns) -> Table:
    """The rows of a file, conversations of an export as chats; `columns` chooses the table of a database."""
    suffix = path.suffix.lower()
    if suffix in DATABASE_SUFFIXES:
        return sqlite_rows.read_table(path, name, columns)
    table = READERS[suffix](path, name)
    return chat_exports.unpack_export(table) if suffix in JSON_SUFFIXES else table
