"""Files of rows: choose the reader by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from itertools import islice
from pathlib import Path

from ...core.errors import DataError
from ...settings.columns import Columns
from . import binary_rows, chat_exports, chat_logs, csv_rows, messengers, sql_rows, text_files
from .chat_logs import ChatOptions
from .json_rows import Table, find_export_column, read_json, read_jsonl

READERS: Mapping[str, Callable[[Path, str], Table]] = {  # of this process; the others have a process of their own
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": csv_rows.read_table,
    ".tsv": csv_rows.read_table,
}
FIRST_ROWS = 20  # that show of which program an export is
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
SUFFIXES = (*READERS, ".parquet", *DATABASE_SUFFIXES, ".sql")


def is_row_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or messengers.is_whatsapp(path)


def read_table(path: Path, name: str, columns: Columns, chats: ChatOptions = ChatOptions()) -> Table:  # noqa: B008
    """The rows of a file, conversations of an export as chats; `columns` chooses the table of a database.

    A folder is one of TextGen's own, with the logs of a character.
    """
    if path.is_dir():
        return chat_logs.read_folder(path, name, chats)
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
    if suffix not in READERS:
        return messengers.read_whatsapp(path, name, chats)
    table = READERS[suffix](path, name)
    if suffix in (".csv", ".tsv"):
        return table
    first = islice((row.columns for row in table.rows() if not row.problem), FIRST_ROWS)
    match next(filter(None, map(find_export_column, first)), ""):
        case "":
            return table
        case "internal":
            return chat_logs.unpack_textgen(table, chats)
        case "mes":
            return chat_logs.unpack_sillytavern(table, chats)
        case "guild":
            return messengers.unpack_discord(table, path, chats)
        case column:
            return chat_exports.unpack_export(table, column)
