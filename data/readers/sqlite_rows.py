"""SQLite databases to rows: opened to be read only, one table or one SELECT."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterator, Mapping
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...core.errors import DataError
from ...settings.columns import Columns
from . import text_files
from .column_names import CHAT_COLUMNS, TEXT_COLUMNS, pair_in
from .json_rows import Row, Table

PATIENCE_SECONDS = 3  # for a database that somebody else writes to
LONGEST_STEP_SECONDS = 120  # from one row to the next
INSTRUCTIONS = 100_000  # of SQLite's own, between two looks at the clock
WRITTEN_AHEAD = 2  # in bytes 18 and 19 of the file: its changes go to a file of their own first
AHEAD = "-wal"  # the ending of that file
ALLOWED = frozenset(
    {sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, getattr(sqlite3, "SQLITE_RECURSIVE", 33)}
)
FIRST_ROWS = 50


def table(path: Path, name: str, columns: Columns) -> Table:
    """The rows of the chosen table or SELECT; with neither, of the only table whose columns are known."""
    address = _address(path, name)
    if columns.query:
        query, what = columns.query, "the SELECT"
    else:
        chosen = _chosen(address, name, columns)
        query, what = f"SELECT * FROM {_quoted(chosen)}", f"table {chosen}"
    with _open(address, name) as connection:
        _cursor(connection, query, name).close()
    return Table(name, "row", lambda: _rows(address, query, name), (), what)


def _address(path: Path, name: str) -> str:
    """How SQLite is to open it so that nothing is written, not even beside it."""
    with text_files.opened(path, name) as stream:
        head = stream.read(100)
    if not head:
        raise DataError(f"{name} is empty. Put rows into it, or take it out of the data.")
    if not head.startswith(b"SQLite format 3\x00"):
        raise DataError(
            f"{name} is no SQLite database: it does not begin as one. Give it the ending of what it is."
        )
    if is_in_use(path):
        raise DataError(
            f"{name} is in use: its last changes are still in {path.name}{AHEAD}. "
            "Close the program that has it open."
        )
    still = "&immutable=1" if len(head) > 19 and WRITTEN_AHEAD in head[18:20] else ""
    return f"{file_address(path.resolve().as_posix())}?mode=ro{still}"


def file_address(path: str) -> str:
    """Without the empty host before it, that of a Windows share (//nas/data) would be taken for a host itself."""
    return f"file:{'//' if path.startswith('/') else ''}{quote(path)}"


def is_in_use(path: Path) -> bool:
    """Whether its last changes are not in the file itself yet."""
    ahead = path.with_name(path.name + AHEAD)
    return ahead.is_file() and ahead.stat().st_size > 0


def _chosen(address: str, name: str, columns: Columns) -> str:
    """The name of the table to read."""
    with _open(address, name) as connection:
        with _told(name):
            listed = connection.execute(
                "SELECT name FROM sqlite_master WHERE type IN ('table', 'view')"
            ).fetchall()
        found = [str(row[0]) for row in listed if not str(row[0]).startswith("sqlite_")]
        there = {each: _columns_of(connection, each, name) for each in found}
    if columns.table:
        match = next((each for each in found if each.lower() == columns.table.lower()), "")
        if not match:
            raise DataError(f"{name} has no table {columns.table!r}. It has: {', '.join(found) or 'none'}.")
        return match
    if not found:
        raise DataError(f"{name} has no tables. Take it out of the data, or choose another.")
    wanted = set(columns.names.values())
    known = [each for each in found if (wanted and wanted <= set(there[each])) or _known(there[each])]
    if len(found) == 1 or len(known) == 1:
        return (known or found)[0]
    tables = "; ".join(f"{each} ({', '.join(there[each])})" for each in (known or found)[:8])
    raise DataError(
        f"{name} has several tables: {tables}. Say under Columns which one: table={(known or found)[0]}."
    )


def _known(columns: list[str]) -> bool:
    """Whether columns of these names say what they mean."""
    small = {column.lower(): column for column in columns}
    return bool(pair_in(small)) or any(c in small for c in (*CHAT_COLUMNS, *TEXT_COLUMNS))


def _columns_of(connection: sqlite3.Connection, table: str, name: str) -> list[str]:
    cursor = _cursor(connection, f"SELECT * FROM {_quoted(table)} LIMIT 0", name)
    return [column[0] for column in cursor.description or ()]


def _quoted(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _open(address: str, name: str) -> Iterator[sqlite3.Connection]:
    """A connection that can do nothing but read."""
    with _told(name):
        connection = sqlite3.connect(address, uri=True, timeout=PATIENCE_SECONDS)
    with closing(connection):
        connection.text_factory = _text
        with _told(name):
            connection.execute("PRAGMA query_only = ON")
            connection.set_authorizer(_allowed)
        yield connection


def _allowed(action: int, *_: Any) -> int:
    return sqlite3.SQLITE_OK if action in ALLOWED else sqlite3.SQLITE_DENY


def _text(data: bytes) -> str:
    """Text as it stands; bytes that are not UTF-8 are kept as halves of characters, which no row may hold."""
    return data.decode("utf-8", "surrogateescape")


def _cursor(connection: sqlite3.Connection, query: str, name: str) -> sqlite3.Cursor:
    with _told(name):
        return connection.execute(query)


@contextmanager
def _told(name: str) -> Iterator[None]:
    """SQLite's errors in words."""
    try:
        yield
    except sqlite3.Error as error:
        raise DataError(f"{name}: {_words(str(error))}") from error
    except sqlite3.Warning as error:  # several statements, on older Pythons
        raise DataError(f"{name}: {_words(str(error))}") from error


def _words(error: str) -> str:
    small = error.lower()
    if "locked" in small or "busy" in small:
        return "another program is writing to this database. Close it, or wait until it is done."
    if (
        "not authorized" in small
        or "readonly" in small
        or "prohibited" in small
        or "execute one statement" in small
    ):
        return "only one SELECT is allowed: nothing is ever written to a database, and no other file is opened."
    if "interrupted" in small:
        return f"the SELECT found no row in {LONGEST_STEP_SECONDS} seconds. Choose a simpler one."
    if "malformed" in small or "not a database" in small or "disk i/o" in small or "disk image" in small:
        return f"the database is damaged ({error}). Mend it (sqlite3 FILE .recover), or save it anew."
    return f"SQLite says: {error}. Choose another table or SELECT under Columns, or save the database anew."


def _rows(address: str, query: str, name: str) -> Iterator[Row]:
    with _open(address, name) as connection:
        begun = time.monotonic()
        connection.set_progress_handler(lambda: int(time.monotonic() - begun > LONGEST_STEP_SECONDS), INSTRUCTIONS)
        cursor = _cursor(connection, query, name)
        columns = [column[0] for column in cursor.description or ()]
        number = 0
        while True:
            with _told(name):
                values = cursor.fetchone()
            begun = time.monotonic()
            if values is None:
                return
            number += 1
            yield Row(number, _named(columns, values))


def _named(columns: list[str], values: tuple[Any, ...]) -> Mapping[str, Any]:
    return dict(zip(columns, values, strict=True))
