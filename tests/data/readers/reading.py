"""Read files as a dataset does: from a file on disk, in the reader process where their reader needs one."""

from __future__ import annotations

import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from training_pro.core.errors import DataError
from training_pro.data import load
from training_pro.data.readers import Row, Table, reader_process, row_files
from training_pro.settings import columns
from training_pro.settings.parsing import training_settings

CUT = "\n@\n"


@pytest.fixture(scope="module", autouse=True)
def one_process() -> Iterator[None]:
    """One reader process for all tests of a module that imports this."""
    with reader_process():
        yield


def write(path: Path, content: str | bytes) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content if isinstance(content, bytes) else content.encode())
    return path


def make_database(path: Path, script: str) -> Path:
    connection = sqlite3.connect(path)
    connection.executescript(script)
    connection.close()
    return path


def read_table(path: Path, names: str = "", **chats: Any) -> tuple[Table, list[Row]]:
    """The table of a file and its rows; `names` is the setting 'Column names', `chats` those of chats."""
    settings = training_settings({"name": "a", "data": ["a"], **chats})
    table = row_files.read_table(path, path.name, columns.parse_columns(names), settings)
    return table, list(table.rows())


def read_columns(path: Path, names: str = "") -> list[dict[str, object]]:
    return [dict(row.columns) for row in read_table(path, names)[1]]


def read_text(path: Path, content: str | bytes | None = None) -> str:
    """The text of a document, which is written first where there is a content."""
    (document,) = load.read_texts(path if content is None else write(path, content), CUT)
    return document.text


def refusal(path: Path, content: str | bytes | None = None) -> str:
    """The message of a file that can't be read, of one line."""
    if content is not None:
        write(path, content)
    with pytest.raises(DataError) as error:
        read_table(path) if row_files.is_row_file(path) else load.read_texts(path)
    assert "\n" not in str(error.value) and path.name in str(error.value)
    return str(error.value)
