"""Rows of SQLite databases and Parquet files: libraries parse them, in the reader process, a batch at a time."""

from __future__ import annotations

import sqlite3
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

from ...core.errors import DataError
from ...settings.columns import Columns
from .json_rows import CHAT_COLUMNS, TEXT_COLUMNS, Row, Table, find_pair
from .reader_process import Budget, read_item, read_items

LOCK_TIMEOUT_SECONDS = 3  # for a database that another program writes to
BATCH_ROWS, BATCH_CHARS, BATCH_SECONDS = 1000, 500_000, 0.05  # of a database, one by one
# Bytes 18 and 19 of a file in write-ahead-log mode (https://sqlite.org/fileformat.html, 1.3.3).
WAL_VERSION = 2
WAL_SUFFIX = "-wal"
ALLOWED_ACTIONS = (sqlite3.SQLITE_SELECT, sqlite3.SQLITE_READ, sqlite3.SQLITE_FUNCTION, sqlite3.SQLITE_RECURSIVE)
PARQUET_BATCH_ROWS, PARQUET_PART_BYTES = 256, 4_000_000


def read_database(path: Path, name: str, columns: Columns, head: bytes) -> Table:
    """The rows of the chosen table or SELECT; by default, of the only table with known columns."""
    if not head.startswith(b"SQLite format 3\x00"):
        raise DataError(f"{name} is not a SQLite database. Give it the correct file extension.")
    if is_in_use(path):
        raise DataError(
            f"{name} is in use: its latest changes are still in {path.name}{WAL_SUFFIX}. Close the "
            "program that has it open."
        )
    # A URI makes SQLite open the file without writing anything, not even next to it: without `immutable`, a file
    # in write-ahead-log mode would get a -wal and a -shm file beside it.
    immutable = "&immutable=1" if len(head) > 19 and WAL_VERSION in head[18:20] else ""
    place = path.resolve().as_posix()
    # Without the empty host, SQLite would take that of a Windows share (//nas/data) for a host.
    address = f"file:{'//' if place.startswith('/') else ''}{quote(place)}?mode=ro{immutable}"
    chosen = (dict(columns.names), columns.table, columns.query)
    query, description = read_item("binary_rows.choose_query", path, name, address, *chosen)
    rows = partial(rows_of_batches, "binary_rows.read_database_batches", path, name, address, query)
    return Table(name, "row", rows, (), description)


def rows_of_batches(function: str, path: Path, name: str, *arguments: Any) -> Iterator[Row]:
    """The rows of the batches that a function makes in the reader process: names of columns, and some rows."""
    number, budget = 0, Budget(path, name)
    for names, batch in read_items(function, path, name, *arguments):
        if number + len(batch) > budget.rows:
            raise budget.exceeded("rows")
        for values in batch:
            number += 1
            yield Row(number, dict(zip(names, values, strict=True)))


def choose_query(
    _path: str, name: str, address: str, names: dict[str, str], table: str, query: str
) -> Iterator[tuple[str, str]]:
    """The SELECT for the rows and its description, as the only item; called in the reader process."""
    with _connect(address, name) as connection:
        description = "from your SELECT"
        if not query:
            found = connection.execute("SELECT name FROM sqlite_master WHERE type IN ('table', 'view')").fetchall()
            columns: dict[str, list[str]] = {}
            for each in (str(row[0]) for row in found if not str(row[0]).startswith("sqlite_")):
                cursor = connection.execute(f"SELECT * FROM {_quote_name(each)} LIMIT 0")
                columns[each] = [column[0] for column in cursor.description or ()]
            chosen = choose_table(columns, name, table, set(names.values()))
            query, description = f"SELECT * FROM {_quote_name(chosen)}", f"table {chosen}"
        connection.execute(query).close()  # an error is said before the rows are asked for
    yield query, description


def read_database_batches(
    _path: str, name: str, address: str, query: str
) -> Iterator[tuple[list[str], list[Any]]]:
    """The names of the columns, and some rows at a time; called in the reader process."""
    with _connect(address, name) as connection:
        cursor = connection.execute(query)
        yield from in_batches([column[0] for column in cursor.description or ()], cursor)


def in_batches(columns: list[str], all_rows: Iterable[Any]) -> Iterator[tuple[list[str], list[Any]]]:
    """The rows in batches: few at a time where they are long, or where each takes its time."""
    rows: list[Any] = []
    started, characters = time.monotonic(), 0
    for values in all_rows:
        rows.append(values)
        characters += sum(len(value) for value in values if isinstance(value, (str, bytes)))
        is_slow = time.monotonic() - started > BATCH_SECONDS
        if len(rows) >= BATCH_ROWS or characters > BATCH_CHARS or is_slow:
            yield columns, rows
            rows, started, characters = [], time.monotonic(), 0
    if rows:
        yield columns, rows


def is_in_use(path: Path) -> bool:
    """Whether the latest changes are still in the write-ahead log."""
    log = path.with_name(path.name + WAL_SUFFIX)
    return log.is_file() and log.stat().st_size > 0


def choose_table(columns: Mapping[str, Sequence[str]], name: str, asked: str, wanted: set[str]) -> str:
    """The table that the user names, otherwise the only one, or the only one with known or wanted columns."""
    if asked:
        for table in columns:
            if table.lower() == asked.lower():
                return table
        raise DataError(f"{name} has no table {asked!r}. Its tables: {', '.join(columns) or 'none'}.")
    if not columns:
        raise DataError(f"{name} has no tables. Remove it from the dataset, or choose another file.")
    known = []
    for table, names in columns.items():
        by_lowercase = {column.lower(): column for column in names}
        is_known = find_pair(by_lowercase) or not by_lowercase.keys().isdisjoint((*CHAT_COLUMNS, *TEXT_COLUMNS))
        if is_known or (wanted and wanted <= set(names)):
            known.append(table)
    candidates = known or list(columns)
    if len(columns) == 1 or len(known) == 1:
        return candidates[0]
    listing = "; ".join(f"{each} ({', '.join(columns[each])})" for each in candidates[:8])
    raise DataError(
        f"{name} has several tables: {listing}. Choose a table under Column names, for example "
        f"table={candidates[0]}."
    )


def _quote_name(name: str) -> str:
    return '"' + name.replace('"', '""') + '"'


@contextmanager
def _connect(address: str, name: str) -> Iterator[sqlite3.Connection]:
    """A connection that can only read; SQLite's errors become DataError."""
    try:
        with closing(sqlite3.connect(address, uri=True, timeout=LOCK_TIMEOUT_SECONDS)) as connection:
            # Bytes that are not UTF-8 become lone surrogates, and no row may hold these.
            connection.text_factory = lambda data: data.decode("utf-8", "surrogateescape")
            connection.set_authorizer(
                lambda action, *_: sqlite3.SQLITE_OK if action in ALLOWED_ACTIONS else sqlite3.SQLITE_DENY
            )
            yield connection
    except (sqlite3.Error, sqlite3.Warning) as error:  # a warning for several statements, before Python 3.12
        words = str(error).lower()
        if "locked" in words or "busy" in words:
            reason = "another program is writing to this database. Close that program, or wait until it is done."
        elif any(word in words for word in ("not authorized", "readonly", "prohibited", "execute one statement")):
            reason = "only one SELECT statement is allowed. Training PRO never writes to a database and opens no"
            reason += " other files."
        elif any(word in words for word in ("malformed", "not a database", "disk i/o", "disk image")):
            reason = f"the database is damaged ({error}). Repair it (sqlite3 FILE .recover), or save it again."
        else:
            reason = f"SQLite reports an error: {error}. Under Column names, choose another table or enter"
            reason += " another SELECT query, or save the database again."
        raise DataError(f"{name}: {reason}") from error


def read_parquet(path: Path, name: str) -> Table:
    """The rows of a Parquet file."""
    return Table(name, "row", partial(rows_of_batches, "binary_rows.read_parquet_batches", path, name))


def read_parquet_batches(path: str, name: str) -> Iterator[tuple[list[str], list[Any]]]:
    """The names of the columns, and some rows at a time; called in the reader process."""
    import pyarrow.parquet

    try:
        with pyarrow.parquet.ParquetFile(path) as file:
            for batch in file.iter_batches(PARQUET_BATCH_ROWS, use_threads=False):
                # As values of Python, texts are several times in memory, so they come in parts of a few MB.
                rows = max(1, PARQUET_BATCH_ROWS * PARQUET_PART_BYTES // max(batch.nbytes, 1))
                for start in range(0, batch.num_rows, rows):
                    columns = batch.slice(start, rows).to_pydict()
                    yield list(columns), list(zip(*columns.values(), strict=True))
    except MemoryError:  # Arrow's own is one of its exceptions, too
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        message = " ".join(str(error).split())[:160]
        raise DataError(
            f"{name} is damaged, encrypted, or not a Parquet file ({message}). Save it again."
        ) from error
