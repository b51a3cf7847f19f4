"""Files of rows: choose the reader by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path

from ...core.errors import DataError
from ...settings.columns import Columns
from . import binary_rows, chat_exports, csv_rows, text_files
from .json_rows import Table, read_json, read_jsonl

READERS: Mapping[str, Callable[[Path, str], Table]] = {  # of this process; the others have a process of their own
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": csv_rows.read_table,
    ".tsv": csv_rows.read_table,
}
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
SUFFIXES = (*READERS, ".parquet", *DATABASE_SUFFIXES)


def is_row_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES


def read_table(path: Path, name: str, columns: Columns) -> Table:
    """The rows of a file, conversations of an export as chats; `columns` chooses the table of a database."""
    suffix = path.suffix.lower()
    with text_files.open_binary(path, name) as file:
        head = file.read(4096)
    if not head.strip(b" \t\r\n\xef\xbb\xbf"):
        raise DataError(f"{name} is empty. Add rows to it, or remove it from the dataset.")
    if suffix in DATABASE_SUFFIXES:
        return binary_rows.read_database(path, name, columns, head)
    if suffix == ".parquet":
        return binary_rows.read_parquet(path, name)
    table = READERS[suffix](path, name)
    return table if suffix in (".csv", ".tsv") else chat_exports.unpack_export(table)
