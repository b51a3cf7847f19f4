"""SQLite databases to rows: opened read-only, one table or one SELECT."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...core.errors import DataError
from ...settings.columns import Columns
from . import text_files
from .json_rows import CHAT_COLUMNS, TEXT_COLUMNS, Row, Table, find_pair
from .process import Budget, read_item, read_items

LOCK_TIMEOUT_SECONDS = 3  # for a database that another program writes to
BATCH_ROWS, BATCH_CHARS, BATCH_SECONDS = 1000, 500_000, 0.05
WAL_VERSION = 2  # bytes 18 and 19 of a file in write-ahead-log mode
WAL_SUFFIX = "-wal"  # the suffix of the write-ahead log
ALLOWED_ACTIONS = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, getattr(sqlite3, "SQLITE_RECURSIVE", 33)}
)


def read_table(path: Path, name: str, columns: Columns) -> Table:
    """The rows of the chosen table or SELECT; by default, of the only table with known columns."""
    address = _read_only_uri(path, name)
    chosen = (dict(columns.names), columns.table, columns.query)
    query, description = read_item("sqlite_rows.choose_query", path, name, address, *chosen)
    return Table(name, "row", lambda: _rows(path, name, address, query), (), description)


def _rows(path: Path, name: str, address: str, query: str) -> Iterator[Row]:
    number, budget = 0, Budget.of(path, name)
    for columns, rows in read_items("sqlite_rows.read_batches", path, name, address, query):
        budget.check_rows(number + len(rows))
        for values in rows:
            number += 1
            yield Row(number, dict(zip(columns, values, strict=True)))


def choose_query(
    _path: str, name: str, address: str, names: dict[str, str], table: str, query: str
) -> Iterator[tuple[str, str]]:
    """The SELECT for the rows and its description, as the only item; called in the reader process."""
    description = "from your SELECT"
    if not query:
        chosen = _choose_table(address, name, Columns(table, "", names))
        query, description = f"SELECT * FROM {_quote_name(chosen)}", f"table {chosen}"
    with _connect(address, name) as connection:
        _execute(connection, query, name).close()
    yield query, description


def read_batches(_path: str, name: str, address: str, query: str) -> Iterator[tuple[list[str], list[Any]]]:
    """The names of the columns, and some rows at a time; called in the reader process."""
    with _connect(address, name) as connection:
        cursor = _execute(connection, query, name)
        columns = [column[0] for column in cursor.description or ()]
        with _translate_errors(name):
            while rows := _fetch_batch(cursor):
                yield columns, rows


def _fetch_batch(cursor: sqlite3.Cursor) -> list[Any]:
    """The next rows: few where they are long, or where each takes its time."""
    rows: list[Any] = []
    started, characters = time.monotonic(), 0
    for values in cursor:
        rows.append(values)
        characters += sum(len(value) for value in values if isinstance(value, (str, bytes)))
        if len(rows) >= BATCH_ROWS or characters > BATCH_CHARS or time.monotonic() - started > BATCH_SECONDS:
            break
    return rows


def _read_only_uri(path: Path, name: str) -> str:
    """A URI that makes SQLite open the file without writing anything, not even next to it."""
    with text_files.open_binary(path, name) as stream:
        head = stream.read(100)
    if not head:
        raise DataError(f"{name} is empty. Add rows to it, or remove it from the dataset.")
    if not head.startswith(b"SQLite format 3\x00"):
        raise DataError(f"{name} is not a SQLite database. Give it the correct file extension.")
    if is_in_use(path):
        raise DataError(
            f"{name} is in use: its latest changes are still in {path.name}{WAL_SUFFIX}. Close the "
            "program that has it open."
        )
    immutable = "&immutable=1" if len(head) > 19 and WAL_VERSION in head[18:20] else ""
    return f"{file_uri(path.resolve().as_posix())}?mode=ro{immutable}"


def file_uri(path: str) -> str:
    """A file URI; without the empty host, SQLite would take that of a Windows share (//nas/data) for a host."""
    return f"file:{'//' if path.startswith('/') else ''}{quote(path)}"


def is_in_use(path: Path) -> bool:
    """Whether the latest changes are still in the write-ahead log."""
    log = path.with_name(path.name + WAL_SUFFIX)
    return log.is_file() and log.stat().st_size > 0


def _choose_table(address: str, name: str, columns: Columns) -> str:
    with _connect(address, name) as connection:
        with _translate_errors(name):
            result = connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
        tables = [str(row[0]) for row in result if not str(row[0]).startswith("sqlite_")]
        columns_of = {each: _column_names(connection, each, name) for each in tables}
    if columns.table:
        match = next((each for each in tables if each.lower() == columns.table.lower()), "")
        if not match:
            raise DataError(f"{name} has no table {columns.table!r}. Its tables: {', '.join(tables) or 'none'}.")
        return match
    if not tables:
        raise DataError(f"{name} has no tables. Remove it from the dataset, or choose another file.")
    wanted_columns = set(columns.names.values())
    known_tables = [
        each
        for each in tables
        if (wanted_columns and wanted_columns <= set(columns_of[each])) or _is_recognized(columns_of[each])
    ]
    if len(tables) == 1 or len(known_tables) == 1:
        return (known_tables or tables)[0]
    listing = "; ".join(f"{each} ({', '.join(columns_of[each])})" for each in (known_tables or tables)[:8])
    raise DataError(
        f"{name} has several tables: {listing}. Choose a table under Column names, for example "
        f"table={(known_tables or tables)[0]}."
    )


def _is_recognized(columns: list[str]) -> bool:
    by_lowercase = {column.lower(): column for column in columns}
    return bool(find_pair(by_lowercase)) or any(c in by_lowercase for c in (*CHAT_COLUMNS, *TEXT_COLUMNS))


def _column_names(connection: sqlite3.Connection, table: str, name: str) -> list[str]:
    cursor = _execute(connection, f"SELECT * FROM {_quote_name(table)} LIMIT 0", name)
    return [column[0] for column in cursor.description or ()]


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _connect(address: str, name: str) -> Iterator[sqlite3.Connection]:
    with _translate_errors(name):
        connection = sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT_SECONDS)
    with closing(connection):
        connection.text_factory = _decode_text
        with _translate_errors(name):
            connection.execute("PRAGMA query_only = ON")
            connection.set_authorizer(_authorize)
        yield connection


def _authorize(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED_ACTIONS else sqlite3.SQLITE_DENY


def _decode_text(data: bytes) -> str:
    """Decode text; bytes that are not UTF-8 become lone surrogates, and no row may hold these."""
    return data.decode("utf-8", "surrogateescape")


def _execute(connection: sqlite3.Connection, query: str, name: str) -> sqlite3.Cursor:
    with _translate_errors(name):
        return connection.execute(query)


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise SQLite's errors as DataError."""
    try:
        yield
    except (sqlite3.Error, sqlite3.Warning) as error:  # a warning for several statements, before Python 3.12
        raise DataError(f"{name}: {_explain(str(error))}") from error


def _explain(error: str) -> str:
    message = error.lower()
    if "locked" in message or "busy" in message:
        return "another program is writing to this database. Close that program, or wait until it is done."
    if any(word in message for word in ("not authorized", "readonly", "prohibited", "execute one statement")):
        return (
            "only one SELECT statement is allowed. Training PRO never writes to a database and "
            "opens no other files."
        )
    if any(word in message for word in ("malformed", "not a database", "disk i/o", "disk image")):
        return f"the database is damaged ({error}). Repair it (sqlite3 FILE .recover), or save it again."
    return (
        f"SQLite reports an error: {error}. Under Column names, choose another table or enter another "
        "SELECT query, or save the database again."
    )
