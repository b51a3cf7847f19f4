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
from .process import MAX_DEPTH, Budget, read_item, read_items

BATCH_ROWS = 256
PART_BYTES = 4_000_000


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
    parquet = text_files.import_library("pyarrow.parquet", "pyarrow", name, "a Parquet file")
    with _translate_errors(name), parquet.ParquetFile(path) as file:
        yield file.metadata.num_rows


Columns = tuple[int, dict[str, list[Any]], dict[int, str]]
"""The number of rows of a batch, its columns, and for each row that can't be read, by its number, the reason."""


def read_batches(path: str, name: str) -> Iterator[Columns]:
    """The batches of a file; called in the reader process."""
    parquet = text_files.import_library("pyarrow.parquet", "pyarrow", name, "a Parquet file")
    _allocate_as_needed()
    first = 1
    with _translate_errors(name), parquet.ParquetFile(path) as file:
        if max(map(_depth, file.schema_arrow.types), default=0) > MAX_DEPTH:
            raise DataError(
                f"{name} has a column that is nested more than {MAX_DEPTH} levels deep. Remove that column."
            )
        for batch in file.iter_batches(BATCH_ROWS, use_threads=False):
            for part in _small_parts(batch):
                yield _read_columns(part, first)
                first += part.num_rows


def _allocate_as_needed() -> None:
    """Let Arrow take memory as it needs it: its own allocator reserves 1 GB, against any limit of the system."""
    import pyarrow

    pyarrow.set_memory_pool(pyarrow.system_memory_pool())


def _small_parts(batch: Any) -> Iterator[Any]:
    """A batch in parts of a few MB: as values of Python its texts are several times in memory."""
    rows = max(1, BATCH_ROWS * PART_BYTES // max(batch.nbytes, 1))
    return (batch.slice(first, rows) for first in range(0, batch.num_rows, rows))


def _depth(kind: Any) -> int:
    """How deeply lists and objects of an Arrow type are nested."""
    level, depth = [kind], 0
    while level := [each.field(n).type for each in level for n in range(each.num_fields)]:
        depth += 1
    return depth


def _read_columns(batch: Any, first: int) -> Columns:
    try:
        return batch.num_rows, batch.to_pydict(), {}
    except (ValueError, OverflowError):  # letters that are no UTF-8, dates that Python does not have
        pass
    columns: dict[str, list[Any]] = {column: [] for column in batch.schema.names}
    problems = {}
    for row in range(batch.num_rows):
        values, problem = _read_row(batch.slice(row, 1))
        for column, value in values.items():
            columns[column].append(value)
        if problem:
            problems[first + row] = problem
    return batch.num_rows, columns, problems


def _read_row(row: Any) -> tuple[dict[str, Any], str]:
    """The values of a row; None for each, and the reason, where they can't be read."""
    try:
        return {column: values[0] for column, values in row.to_pydict().items()}, ""
    except UnicodeDecodeError as error:
        problem = f"byte {error.start + 1} of a string is not UTF-8. Save the file as UTF-8."
    except (ValueError, OverflowError) as error:
        problem = (
            f"has a value that can't be read ({text_files.short_message(error)}). Correct it, or remove "
            "its column."
        )
    return dict.fromkeys(row.schema.names), problem


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise Arrow's errors as DataError."""
    import pyarrow

    try:
        yield
    except MemoryError:  # Arrow's own is one of its exceptions, too
        raise
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        message = text_files.short_message(error, 160)
        raise DataError(
            f"{name} is damaged, encrypted, or not a Parquet file ({message}). Save it again."
        ) from error
