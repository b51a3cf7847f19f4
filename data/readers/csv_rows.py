"""Delimited text tables (.csv, .tsv) to rows; separator, quotes and header are detected."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import chain, zip_longest
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import DataError
from . import text_files
from .json_rows import CHAT_COLUMNS, COMPLETION_PAIRS, CONTEXT_COLUMNS, PAIR_COLUMNS, TEXT_COLUMNS, Row, Table

SEPARATORS = ",;\t|"
SEPARATOR_WORDS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
NO_SEPARATOR = "\x1f"  # for a table of one column: each line is a text, whatever it contains
KNOWN_COLUMNS = {*CHAT_COLUMNS, *TEXT_COLUMNS, *CONTEXT_COLUMNS, *chain(*PAIR_COLUMNS, *COMPLETION_PAIRS)}
SAMPLE_LINES = 200
MAX_CELL_CHARS = 6_000_000  # a little more than a row may have
MAX_NAME_CHARS = 60
EXCEL_SEPARATOR = re.compile(r"sep=(.)\s*\r?\n?", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?%?")


@dataclass(frozen=True)
class Dialect:
    """The separator, quotes and column names of a table."""

    separator: str
    quote: str  # around texts; empty where quotes are ordinary characters
    names: tuple[str, ...]
    has_header: bool  # whether the first line names the columns
    skipped_lines: int  # lines before the header that are not part of the table: Excel's 'sep=;'


def read_table(path: Path, name: str) -> Table:
    """The rows of a file, read as a stream; a DataError where it holds no table."""
    # The limit is one for the whole program, and somebody may have set a larger one.
    csv.field_size_limit(max(csv.field_size_limit(), MAX_CELL_CHARS))
    encoding, notes = text_files.detect_file_encoding(path, name)

    def open_text() -> TextIO:
        return path.open(encoding=encoding, errors="replace", newline="")

    with open_text() as stream:
        # Lines of limited length, so that a file without line ends is not read into memory as one line.
        head = "".join(stream.readline(MAX_CELL_CHARS) for _ in range(SAMPLE_LINES))
    dialect = _detect_dialect(head, name)
    words = "one column"
    if dialect.separator != NO_SEPARATOR:
        words = f"columns separated by {SEPARATOR_WORDS.get(dialect.separator, dialect.separator)}"
    words += f", {dialect.quote} as the quote character" if dialect.quote else ", no quote character"
    words += f", {'column names' if dialect.has_header else 'no column names'} in the first line"
    words += "" if dialect.has_header else ", so the columns are numbered"

    def rows() -> Iterator[Row]:
        header_due, skipped = dialect.has_header, dialect.skipped_lines
        with open_text() as stream:
            for _ in range(skipped):
                stream.readline()
            reader = _reader(stream, dialect.separator, dialect.quote)
            while True:
                number = skipped + reader.line_num + 1  # of the line where the row begins
                try:
                    cells: list[str] | csv.Error = next(reader)
                except StopIteration:
                    return
                except csv.Error as error:
                    cells = error
                    if skipped + reader.line_num > number:  # the rows in these lines must not be lost unnoticed
                        raise DataError(
                            f"{name}, line {number}: an opening {dialect.quote} has no closing {dialect.quote}, "
                            f"or a cell contains one. Write it twice ({2 * dialect.quote}) inside of a cell."
                        ) from error
                if isinstance(cells, csv.Error) or any(cell and not cell.isspace() for cell in cells):
                    if not header_due:
                        yield _to_row(number, cells, dialect)
                    header_due = header_due and isinstance(cells, csv.Error)

    return Table(name, "line", rows, notes, words)


def _detect_dialect(head: str, name: str) -> Dialect:
    """The dialect by the first lines."""
    declared = EXCEL_SEPARATOR.match(head)
    if declared:
        head = head[declared.end() :]
    quote = '"'
    candidates = {
        separator: _parse(head, separator, quote)[0] for separator in (declared[1] if declared else SEPARATORS)
    }
    separator = max(candidates, key=lambda candidate: _fit(candidates[candidate]))
    if max(map(len, candidates[separator]), default=0) < 2 or len(candidates[separator][0]) < 2:
        separator = NO_SEPARATOR
    rows, complete = _parse(head, separator, quote)
    if not complete:  # unbalanced quotes are ordinary characters, if then each row is as wide as the first
        unquoted, _ = _parse(head, separator, "")
        has_quoted_cells = any(cell[:1] == quote == cell[-1:] for row in unquoted for cell in row)
        if unquoted and not has_quoted_cells and _fit(unquoted)[0] == 1.0:
            rows, quote = unquoted, ""
    if not rows:
        raise DataError(f"{name} has no rows. Add rows to it, or remove it from the dataset.")
    first = [cell.strip() for cell in rows[0]]
    has_header = _are_names(first, rows[1:])
    # A table without a header has the numbers of its columns as names.
    names = [cell if has_header and cell else str(number) for number, cell in enumerate(first, start=1)]
    while has_header and len(names) > 1 and not first[len(names) - 1]:
        names.pop()
    return Dialect(separator, quote, tuple(names), has_header, int(declared is not None))


def _parse(head: str, separator: str, quote: str) -> tuple[list[list[str]], bool]:
    """The rows of the first lines, and whether all of them could be parsed."""
    rows: list[list[str]] = []
    try:
        for row in _reader(io.StringIO(head, newline=""), separator, quote):
            if any(cell.strip() for cell in row):
                rows.append(row)
    except csv.Error as error:
        return rows, "unexpected end" in str(error)  # the sample may end inside a quoted text
    return rows, True


def _reader(lines: Iterable[str], separator: str, quote: str) -> Any:
    options: dict[str, Any] = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    return csv.reader(lines, strict=True, delimiter=separator, **options)


def _fit(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """How well a separator divides the first rows: the share of rows as wide as the first, then that width."""
    width = len(rows[0]) if rows else 0
    if width < 2:
        return (0.0, 0)
    return (Counter(map(len, rows))[width] / len(rows), width)


def _are_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the first row is a header: it is, unless one of its cells cannot be a column name."""
    filled = [cell.lower() for cell in first if cell]
    if not filled or len(set(filled)) < len(filled):
        return False
    if not KNOWN_COLUMNS.isdisjoint(filled):
        return True
    last = max(number for number, cell in enumerate(first) if cell)
    first = first[: last + 1]
    if not all(first[1:]):  # the first column may hold row numbers, without a name
        return False
    if any(len(cell) > MAX_NAME_CHARS or "\n" in cell or NUMBER.fullmatch(cell) for cell in first):
        return False
    if any(cell.endswith((".", "?", "!")) for cell in first):
        return False
    return bool(others) and (len(first) > 1 or " " not in first[0])


def _to_row(number: int, cells: list[str] | csv.Error, dialect: Dialect) -> Row:
    """A row by the names of its columns, or what is wrong with it in plain words."""
    names, quote = dialect.names, dialect.quote
    if isinstance(cells, csv.Error):
        remedy = f"Each {quote} needs a second one: at the end of its cell, or beside it. " if quote else ""
        problem = f"can't be read ({cells}). {remedy}A cell has at most {MAX_CELL_CHARS:,} characters."
        return Row(number, {}, problem)
    if any("\x00" in cell for cell in cells):
        return Row(number, {}, "contains a NUL byte. Save the table again as a CSV file in UTF-8.")
    is_too_long = len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :])
    if is_too_long or len(cells) == 1 < len(names):  # a single cell is the rest of one with a line break
        separator = SEPARATOR_WORDS.get(dialect.separator, dialect.separator)
        remedy = f"This table has no quote character, so a cell can't contain {separator}."
        if quote:
            remedy = f"A cell that contains {separator} or a line break must begin and end with {quote}."
        columns = f"{len(cells)} columns" if is_too_long else "1 column"
        return Row(number, {}, f"has {columns} instead of {len(names)}. {remedy}")
    return Row(number, dict(zip_longest(names, cells[: len(names)], fillvalue="")))
