"""Tables as text (.csv, .tsv) to rows: what separates their columns and whether these have names is found out."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TextIO

from ...core.errors import DataError
from . import text_files
from .column_names import CHAT_COLUMNS, COMPLETION, MORE_COLUMNS, PAIRS, TEXT_COLUMNS
from .json_rows import Row, Table

SEPARATORS = ",;\t|"
WORDS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
NO_SEPARATOR = "\x1f"  # of a table of one column: a line is a text, whatever stands in it
KNOWN = frozenset({*CHAT_COLUMNS, *TEXT_COLUMNS, *MORE_COLUMNS, *COMPLETION, *(c for pair in PAIRS for c in pair)})
LOOKED_AT = 200  # lines
LONGEST_CELL = 6_000_000  # characters: a little more than a row may have
LONGEST_NAME = 60
EXCEL_SAYS = re.compile(r"sep=(.)\s*\r?\n?", re.IGNORECASE)
NUMBER = re.compile(r"[-+]?[\d.,]+(?:[eE][-+]?\d+)?%?")


@dataclass(frozen=True)
class Dialect:
    """How a table is written."""

    separator: str
    quote: str  # around texts; empty where quotes are letters like others
    names: tuple[str, ...]
    named: bool  # by the first line
    before: int  # lines before the names that are not of the table: Excel's 'sep=;'

    @property
    def words(self) -> str:
        between = "one column"
        if self.separator != NO_SEPARATOR:
            between = f"{WORDS.get(self.separator, self.separator)} between columns"
        quotes = f"texts in {self.quote}" if self.quote else "no quotes around texts"
        named = "names in the first line" if self.named else "no names in the first line, so columns have numbers"
        return f"{between}, {quotes}, {named}"


def table(path: Path, name: str) -> Table:
    """The rows, read as a stream; a DataError where the file holds no table."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    encoding, notes = text_files.encoding_of_file(path, name)

    def opened() -> TextIO:
        return path.open(encoding=encoding, errors="replace", newline="")

    with opened() as stream:
        head = "".join(line for line, _ in zip(_lines(stream), range(LOOKED_AT), strict=False))
    if not head.strip("\x00 \t\r\n\ufeff"):
        raise DataError(f"{name} is empty. Put rows into it, or take it out of the data.")
    dialect = _dialect(head, name)
    return Table(name, "line", lambda: _rows(opened, dialect), notes, dialect.words)


def _lines(stream: TextIO) -> Iterator[str]:
    """Lines, none longer than may be: a file without line ends is not one line to be held."""
    while line := stream.readline(LONGEST_CELL):
        yield line


def _dialect(head: str, name: str) -> Dialect:
    said = EXCEL_SAYS.match(head)
    if said:
        head = head[said.end() :]
    quote = _quote(head)
    tried = {separator: _parsed(head, separator, quote)[0] for separator in (said[1] if said else SEPARATORS)}
    separator = max(tried, key=lambda each: _fit(tried[each]))
    if max(map(len, tried[separator]), default=0) < 2 or len(tried[separator][0]) < 2:
        separator = NO_SEPARATOR
    rows, whole = _parsed(head, separator, quote)
    if not whole:  # quotes that open nothing are letters, if then each row is as wide as the first
        bare, _ = _parsed(head, separator, "")
        inside = any(cell[:1] == quote == cell[-1:] for row in bare for cell in row)
        if bare and not inside and _fit(bare)[0] == 1.0:
            rows, quote = bare, ""
    if not rows:
        raise DataError(f"{name} holds no rows. Put rows into it, or take it out of the data.")
    first = [cell.strip() for cell in rows[0]]
    named = _are_names(first, rows[1:])
    names = [cell if named and cell else str(number) for number, cell in enumerate(first, start=1)]
    while named and len(names) > 1 and not first[len(names) - 1]:
        names.pop()
    return Dialect(separator, quote, tuple(names), named, int(said is not None))


def _quote(head: str) -> str:
    """The sign around texts: the one that stands right beside separators and line ends more often."""
    beside = {q: len(re.findall(f"(?:^|[,;\\t|]){q}|{q}(?:[,;\\t|]|$)", head, re.MULTILINE)) for q in "\"'"}
    return "'" if beside["'"] > 2 * beside['"'] and beside["'"] > 2 else '"'


def _parsed(head: str, separator: str, quote: str) -> tuple[list[list[str]], bool]:
    """The rows of the first lines, and whether all of them could be read."""
    rows: list[list[str]] = []
    try:
        for row in csv.reader(io.StringIO(head, newline=""), strict=True, **_written(separator, quote)):
            if any(cell.strip() for cell in row):
                rows.append(row)
    except csv.Error as error:
        return rows, "unexpected end" in str(error)  # the first lines may end within a text
    return rows, True


def _written(separator: str, quote: str) -> dict[str, Any]:
    """For the reader: how a table is written."""
    quoting = {"quotechar": quote} if quote else {"quoting": csv.QUOTE_NONE}
    return {"delimiter": separator, **quoting}


def _fit(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """How well a separator divides the first rows: the share of them as wide as the first, then their width."""
    width = len(rows[0]) if rows else 0
    if width < 2:
        return (0.0, 0)
    return (Counter(map(len, rows))[width] / len(rows), width)


def _are_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: it does unless something in it is no name."""
    filled = [cell.lower() for cell in first if cell]
    if not filled or len(set(filled)) < len(filled):
        return False
    if not KNOWN.isdisjoint(filled):
        return True
    while first and not first[-1]:
        first = first[:-1]
    if not all(first[1:]):  # the first one may be a number of the row
        return False
    if any(len(cell) > LONGEST_NAME or "\n" in cell or NUMBER.fullmatch(cell) for cell in first):
        return False
    if any(cell.endswith((".", "?", "!")) for cell in first):
        return False
    return bool(others) and (len(first) > 1 or " " not in first[0])


def _rows(opened: Callable[[], TextIO], dialect: Dialect) -> Iterator[Row]:
    """Each row by the line on which it begins."""
    with opened() as stream:
        skipped = [stream.readline() for _ in range(dialect.before)]
        reader = csv.reader(stream, strict=True, **_written(dialect.separator, dialect.quote))
        before, names_due = len(skipped), dialect.named
        while True:
            number = reader.line_num + before + 1
            try:
                cells = next(reader)
            except StopIteration:
                return
            except csv.Error as error:
                if not names_due:
                    yield Row(number, {}, _broken(str(error), dialect))
                continue
            if not any(cell and not cell.isspace() for cell in cells):
                continue
            if names_due:
                names_due = False
                continue
            yield _row(number, cells, dialect)


def _row(number: int, cells: list[str], dialect: Dialect) -> Row:
    names = dialect.names
    if any("\x00" in cell for cell in cells):
        return Row(number, {}, "holds a NUL byte. Save the table anew, as CSV in UTF-8.")
    if len(cells) > len(names) and any(cell.strip() for cell in cells[len(names) :]):
        return Row(number, {}, f"has {len(cells)} columns and not {len(names)}. {_remedy(dialect)}")
    if len(cells) < len(names):
        return Row(number, {}, f"has {_columns(len(cells))} and not {len(names)}. {_remedy(dialect)}")
    return Row(number, dict(zip(names, cells, strict=False)))


def _columns(count: int) -> str:
    return f"{count} column" + "s" * (count != 1)


def _remedy(dialect: Dialect) -> str:
    separator = WORDS.get(dialect.separator, dialect.separator)
    if not dialect.quote:
        return f"No text may have {separator} in it."
    return f"A text with {separator} or a line end in it stands in {dialect.quote}."


def _broken(error: str, dialect: Dialect) -> str:
    quote = dialect.quote
    if "field limit" in error:
        return (
            f"has a text of more than {LONGEST_CELL:,} characters. Split it, or close the {quote} that opens it."
        )
    if "unexpected end" in error:
        return f"ends in the middle: a {quote} opens a text and none closes it."
    if "expected after" in error:
        return f"has a {quote} inside a text. Double it there ({quote}{quote})."
    return f"cannot be read ({error})."
