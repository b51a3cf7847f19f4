"""Parquet files to rows, a batch at a time."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from . import text_files
from .json_rows import Row, Table

BATCH_ROWS = 256


def read_table(path: Path, name: str) -> Table:
    """The rows of a file; a DataError where it is damaged or locked."""
    with text_files.open_binary(path, name) as stream:
        if not stream.read(1):
            raise DataError(f"{name} is empty. Add rows to it, or remove it from the dataset.")
    parquet = text_files.import_library("pyarrow.parquet", "pyarrow", name, "Parquet")
    with _translate_errors(name), parquet.ParquetFile(path) as file:
        if not file.metadata.num_rows:
            raise DataError(f"{name} has no rows. Add rows to it, or remove it from the dataset.")
    return Table(name, "row", lambda: _rows(parquet.ParquetFile, path, name))


def _rows(open_parquet: Callable[[Path], Any], path: Path, name: str) -> Iterator[Row]:
    number = 0
    with _translate_errors(name), open_parquet(path) as file:
        for batch in file.iter_batches(BATCH_ROWS):
            for columns in _batch_rows(batch):
                number += 1
                yield Row(number, columns) if isinstance(columns, dict) else Row(number, {}, columns)


def _batch_rows(batch: Any) -> Iterator[dict[str, Any] | str]:
    """The rows of a batch; for a row that cannot be read, the reason."""
    try:
        yield from batch.to_pylist()
        return
    except UnicodeDecodeError:
        pass
    for row in range(batch.num_rows):
        try:
            yield from batch.slice(row, 1).to_pylist()
        except UnicodeDecodeError as error:
            yield f"byte {error.start + 1} of a text is not UTF-8. Save the file as UTF-8."


@contextmanager
def _translate_errors(name: str) -> Iterator[None]:
    """Raise Arrow's errors as DataError."""
    import pyarrow

    try:
        yield
    except (pyarrow.ArrowException, OSError, ValueError) as error:
        if isinstance(error, DataError):
            raise
        message = text_files.short_message(error, 160)
        raise DataError(
            f"{name} is damaged, encrypted, or not a Parquet file ({message}). Save it again."
        ) from error
