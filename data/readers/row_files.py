"""Files of rows: choose the reader by suffix."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from ...core.errors import DataError
from ...settings.columns import Columns
from . import binary_rows, chat_exports, csv_rows, sql_rows, text_files
from .json_rows import Row, Table, read_json, read_jsonl
from .reader_process import MAX_DEPTH, exceeds_depth

READERS: Mapping[str, Callable[[Path, str], Table]] = {  # of this process; the others have a process of their own
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": csv_rows.read_table,
    ".tsv": csv_rows.read_table,
}
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
TOO_DEEP = f"is nested more than {MAX_DEPTH} levels deep. Each row must be an object whose keys are column names."
SUFFIXES = (*READERS, ".parquet", *DATABASE_SUFFIXES, ".sql")


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
    if suffix == ".sql":
        return sql_rows.read_dump(path, name, columns, head)
    table = READERS[suffix](path, name)
    if suffix in (".csv", ".tsv"):
        return table

    def rows() -> Iterator[Row]:
        for row in table.rows():
            yield Row(row.number, {}, TOO_DEEP) if exceeds_depth(row.columns) else row

    return chat_exports.unpack_export(replace(table, rows=rows))
