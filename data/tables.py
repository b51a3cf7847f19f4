"""Tables as text (.csv, .tsv) to rows: what separates their columns and whether these have names is found out."""

from __future__ import annotations

import csv
import io
import re
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TextIO

from ..core.errors import DataError
from . import reading
from .rows import Row, Table
from .shapes import CHAT_COLUMNS, COMPLETION, MORE_COLUMNS, PAIRS, TEXT_COLUMNS

SEPARATORS = ",;\t|"
WORDS = {",": "a comma", ";": "a semicolon", "\t": "a tab", "|": "a |"}
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
    quote: str
    names: tuple[str, ...]
    named: bool  # by the first line
    before: int  # lines before the names that are not of the table: Excel's 'sep=;'

    @property
    def words(self) -> str:
        between = f"{WORDS[self.separator]} between columns" if len(self.names) > 1 else "one column"
        named = "names in the first line" if self.named else "no names in the first line, so columns have numbers"
        return f"{between}, texts in {self.quote}, {named}"


def table(path: Path, name: str) -> Table:
    """The rows, read as a stream; a DataError where the file holds no table."""
    csv.field_size_limit(max(csv.field_size_limit(), LONGEST_CELL))
    encoding, notes = reading.encoding_of_file(path, name)

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
    separators = said[1] if said else SEPARATORS
    quote = _quote(head)
    tried = {separator: _parsed(head, separator, quote) for separator in separators}
    separator = max(separators, key=lambda each: _fit(tried[each]))
    rows = tried[separator]
    if not rows:
        raise DataError(f"{name} holds no rows. Put rows into it, or take it out of the data.")
    first = [cell.strip() for cell in rows[0]]
    named = _are_names(first, rows[1:])
    names = first if named else [str(number) for number in range(1, len(first) + 1)]
    while named and len(names) > 1 and not names[-1]:
        names.pop()
    return Dialect(separator, quote, tuple(names), named, int(said is not None))


def _quote(head: str) -> str:
    """The sign around texts: the one that stands right beside separators and line ends more often."""
    beside = {q: len(re.findall(f"(?:^|[,;\\t|]){q}|{q}(?:[,;\\t|]|$)", head, re.MULTILINE)) for q in "\"'"}
    return "'" if beside["'"] > 2 * beside['"'] and beside["'"] > 2 else '"'


def _parsed(head: str, separator: str, quote: str) -> list[list[str]]:
    found = csv.reader(io.StringIO(head, newline=""), delimiter=separator, quotechar=quote)
    rows: list[list[str]] = []
    with suppress(csv.Error):  # what it is, the rows say
        rows.extend(row for row in found if any(cell.strip() for cell in row))
    return rows


def _fit(rows: Sequence[Sequence[str]]) -> tuple[float, int]:
    """How well a separator divides the first rows: the share of them as wide as the first, then their width."""
    width = len(rows[0]) if rows else 0
    if width < 2:
        return (0.0, 0)
    return (Counter(map(len, rows))[width] / len(rows), width)


def _are_names(first: Sequence[str], others: Sequence[Sequence[str]]) -> bool:
    """Whether the first row names the columns: it does unless something in it is no name."""
    while first and not first[-1]:
        first = first[:-1]
    if not first or not all(first) or len({cell.lower() for cell in first}) < len(first):
        return False
    if any(cell.lower() in KNOWN for cell in first):
        return True
    if any(len(cell) > LONGEST_NAME or "\n" in cell or NUMBER.fullmatch(cell) for cell in first):
        return False
    if any(cell.endswith((".", "?", "!")) for cell in first):
        return False
    return bool(others) and (len(first) > 1 or " " not in first[0])


def _rows(opened: Callable[[], TextIO], dialect: Dialect) -> Iterator[Row]:
    """Each row by the line on which it begins."""
    with opened() as stream:
        skipped = [stream.readline() for _ in range(dialect.before)]
        reader = csv.reader(stream, delimiter=dialect.separator, quotechar=dialect.quote, strict=True)
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
    return f"A text with {WORDS[dialect.separator]} or a line end in it stands in {dialect.quote}."


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
