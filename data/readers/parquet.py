"""Parquet files to rows, a batch at a time."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import repeat
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import text_files
from .json_rows import Row, Table
from .limits import MAX_DEPTH, Budget
from .reader_process import read_item, read_items

BATCH_ROWS = 256
PART_BYTES = 4_000_000
# The number of rows of a batch, its columns, and for each row that can't be read, by its number, the reason.
Batch = tuple[int, dict[str, list[Any]], dict[int, str]]


def read_table(path: Path, name: str) -> Table:
    """The rows of a file; a DataError where it is damaged or locked."""
    with text_files.open_binary(path, name) as stream:
        if not stream.read(1):
            raise DataError(f"{name} is empty. Add rows to it, or remove it from the dataset.")
    if not read_item("parquet.count_rows", path, name):
        raise DataError(f"{name} has no rows. Add rows to it, or remove it from the dataset.")
    return Table(name, "row", lambda: _rows(path, name))


def _rows(path: Path, name: str) -> Iterator[Row]:
    number, budget = 0, Budget.of(path, name)
    for rows, columns, problems in read_items("parquet.read_batches", path, name):
        budget.check_rows(number + rows)
        values = zip(*columns.values(), strict=True) if columns else repeat((), rows)
        for row in values:
            number += 1
            problem = problems.get(number, "")
            yield Row(number, {}, problem) if problem else Row(number, dict(zip(columns, row, strict=True)))


def count_rows(path: str, name: str) -> Iterator[int]:
    """The number of rows that a file states, as the only item; called in the reader process."""
    with _open(path, name) as file:
        yield file.metadata.num_rows


def read_batches(path: str, name: str) -> Iterator[Batch]:
    """The batches of a file; called in the reader process."""
    first = 1
    with _open(path, name) as file:
        level, depth = list(file.schema_arrow.types), 0
        while level := [each.field(n).type for each in level for n in range(each.num_fields)]:
            depth += 1
        if depth > MAX_DEPTH:
            raise DataError(
                f"{name} has a column that is nested more than {MAX_DEPTH} levels deep. Remove that column."
            )
        for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
            # As values of Python, texts are several times in memory, so they come in parts of a few MB.
            rows = max(1, BATCH_ROWS * PART_BYTES // max(batch.nbytes, 1))
            for start in range(0, batch.num_rows, rows):
                part = batch.slice(start, rows)
                yield _read_columns(part, first)
                first += part.num_rows


@contextmanager
def _open(path: str, name: str) -> Iterator[Any]:
    """A Parquet file; Arrow's errors become DataError."""
    parquet = text_files.import_library("pyarrow.parquet", "pyarrow", name, "a Parquet file")
    import pyarrow

    # Arrow's own allocator reserves 1 GB, against any limit of the system; this one takes memory as it needs it.
    pyarrow.set_memory_pool(pyarrow.system_memory_pool())
    try:
        with parquet.ParquetFile(path) as file:
            yield file
    except MemoryError:  # Arrow's own is one of its exceptions, too
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        message = text_files.short_message(error, 160)
        raise DataError(
            f"{name} is damaged, encrypted, or not a Parquet file ({message}). Save it again."
        ) from error


def _read_columns(batch: Any, first: int) -> Batch:
    try:
        return batch.num_rows, batch.to_pydict(), {}
    except (ValueError, OverflowError):  # letters that are no UTF-8, dates that Python does not have
        pass
    columns: dict[str, list[Any]] = {column: [] for column in batch.schema.names}
    problems = {}
    for row in range(batch.num_rows):
        values: dict[str, list[Any]] = {column: [None] for column in columns}
        try:
            values = batch.slice(row, 1).to_pydict()
        except UnicodeDecodeError as error:
            problems[first + row] = f"byte {error.start + 1} of a string is not UTF-8. Save the file as UTF-8."
        except (ValueError, OverflowError) as error:
            problems[first + row] = (
                f"has a value that can't be read ({text_files.short_message(error)}). Correct it, or remove "
                "its column."
            )
        for column in columns:
            columns[column] += values[column]
    return batch.num_rows, columns, problems
