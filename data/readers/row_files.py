"""Files of rows: choose the reader by suffix."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from functools import partial
from pathlib import Path

from ...core.errors import DataError
from ...settings.columns import Columns
from ...settings.definitions import TrainingSettings
from . import binary_rows, chat_exports, chat_logs, csv_rows, messengers, sql_rows, text_files
from .json_rows import Table, find_program, read_json, read_jsonl

READERS: Mapping[str, Callable[[Path, str], Table]] = {  # of this process; the others have a process of their own
    ".json": read_json,
    ".jsonl": read_jsonl,
    ".ndjson": read_jsonl,
    ".csv": csv_rows.read_table,
    ".tsv": csv_rows.read_table,
}
DEFAULTS = TrainingSettings()
EXPORTS: Mapping[str, Callable[[Table, Path, TrainingSettings], Table]] = {
    "TextGen": chat_logs.unpack_textgen,
    "older TextGen": chat_logs.unpack_textgen,
    "SillyTavern": chat_logs.unpack_sillytavern,
    **{program: partial(chat_exports.unpack_export, program) for program in chat_exports.READ_MESSAGES},
    **{program: partial(messengers.unpack_chats, program) for program in messengers.READ_POSTS},
}
DATABASE_SUFFIXES = (".db", ".sqlite", ".sqlite3")
SUFFIXES = (*READERS, ".parquet", *DATABASE_SUFFIXES, ".sql")


def is_row_file(path: Path) -> bool:
    return path.suffix.lower() in SUFFIXES or messengers.is_whatsapp(path)


def read_table(path: Path, name: str, columns: Columns, settings: TrainingSettings = DEFAULTS) -> Table:
    """The rows of a file, conversations of an export as chats; `columns` chooses the table of a database.

    A folder is one of TextGen's own, with the logs of a character.
    """
    if path.is_dir():
        return chat_logs.read_folder(path, name, settings)
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
        return messengers.read_whatsapp(path, name, settings)
    table = READERS[suffix](path, name)
    if suffix in (".csv", ".tsv"):
        return table
    program = find_program(row.columns for row in table.rows() if not row.problem)
    return EXPORTS[program](table, path, settings) if program else table
