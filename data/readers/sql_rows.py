"""Rows of SQL dumps (.sql) of SQLite, MySQL and PostgreSQL: INSERT and COPY are read, and nothing is executed.

A dump is tokenized in chunks, because one INSERT may hold a whole table. A value that only a database could work
out, such as now(), is null.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from functools import partial
from itertools import groupby
from operator import itemgetter
from pathlib import Path
from typing import Any

from ...core.errors import DataError
from ...settings.columns import Columns
from ...train_utils import format_count
from . import text_files
from .binary_rows import choose_table, in_batches, rows_of_batches
from .json_rows import Table
from .reader_process import read_item

CHUNK_CHARS = 1 << 18
CUSTOM_FORMAT = b"PGDMP"  # of pg_dump --format=custom
# MySQL escapes with backslashes in every text, the others only where PostgreSQL has an E before it.
MYSQL = re.compile(r"^-- (?:MySQL|MariaDB|phpMyAdmin)|/\*![0-9]|\bENGINE *=|^INSERT INTO `", re.I | re.M)
ESCAPED_TEXT = r"'(?:[^'\\]++|''|\\.)*+'"
MYSQL_TEXT = ESCAPED_TEXT + "|" + ESCAPED_TEXT.replace("'", '"')
TOKEN = r"""
    (?P<space>\s++ | --[^\n]*+ | /\*.*?\*/ {comment})
  | (?P<escaped>[eE]{escaped})
  | (?P<binary>[xX]'[0-9A-Fa-f]*+' | 0[xX][0-9A-Fa-f]++)
  | (?P<text>{text} | \$(?P<tag>\w*+)\$.*?\$(?P=tag)\$)
  | (?P<quoted>"[^"]*+(?:""[^"]*+)*+" | `[^`]*+(?:``[^`]*+)*+` | \[[^\]]*+\])
  | (?P<number>[-+]?(?:\d++(?:\.\d*+)?|\.\d++)(?:[eE][-+]?\d++)?)
  | (?P<word>[^\W\d][\w$]*+)
  | (?P<sign>:: | \|\| | .)
"""
OPENS = re.compile(r"[eExX]?['\"`\[]|/\*|\$\w*\$?")  # what may end in a chunk that is not read yet
MYSQL_ESCAPE = re.compile(r"\\(.)", re.DOTALL)
POSTGRES_ESCAPE = re.compile(
    r"\\(?:x(?P<x>[0-9A-Fa-f]{1,2})|u(?P<u>[0-9A-Fa-f]{4})|U(?P<U>[0-9A-Fa-f]{8})|(?P<octal>[0-7]{1,3})|(?P<letter>.))",
    re.DOTALL,
)
LETTERS = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", "v": "\v"}
MYSQL_LETTERS = {"0": "\0", "b": "\b", "n": "\n", "r": "\r", "t": "\t", "Z": "\x1a", "%": "\\%", "_": "\\_"}
CONSTANTS = {"NULL": None, "TRUE": True, "FALSE": False}
# What begins an entry of CREATE TABLE that is not a column.
CONSTRAINTS = {
    *("PRIMARY", "KEY", "UNIQUE", "CONSTRAINT", "INDEX", "FOREIGN", "CHECK", "FULLTEXT", "SPATIAL"),
    *("EXCLUDE", "LIKE", "PERIOD"),
}


def read_dump(path: Path, name: str, columns: Columns, head: bytes) -> Table:
    """The rows of the chosen table; by default, of the only table with known columns."""
    if head.startswith(CUSTOM_FORMAT):
        raise DataError(f"{name} is in PostgreSQL's custom format. Save it again with pg_dump --format=plain.")
    if columns.query:
        raise DataError(f"{name} is a dump, so no SELECT can be run on it. Under Column names, enter table=NAME.")
    encoding, notes = text_files.detect_file_encoding(path, name)
    tables = read_item("sql_rows.find_tables", path, name, encoding)
    table = choose_table(tables, name, columns.table, set(columns.names.values()))
    rows = partial(rows_of_batches, "sql_rows.read_batches", path, name, encoding, table)
    return Table(name, "row", rows, notes, f"table {table}")


def find_tables(path: str, name: str, encoding: str) -> Iterator[dict[str, list[str]]]:
    """The columns of each table with rows, as the only item; called in the reader process."""
    tables: dict[str, list[str]] = {}
    for table, columns, _ in _Dump(path, name, encoding).rows():
        if not table.startswith("sqlite_") and tables.get(table) != columns:
            tables[table] = list(dict.fromkeys([*tables.get(table, ()), *columns]))
    yield tables


def read_batches(path: str, name: str, encoding: str, table: str) -> Iterator[tuple[list[str], list[Any]]]:
    """The names of the columns, and some rows at a time; called in the reader process."""
    rows = ((columns, values) for found, columns, values in _Dump(path, name, encoding).rows() if found == table)
    for columns, group in groupby(rows, itemgetter(0)):  # another INSERT may name other columns
        yield from in_batches(columns, map(itemgetter(1), group))


class _Dump:
    """Walks through the statements of a dump, with one token of lookahead."""

    def __init__(self, path: str, name: str, encoding: str) -> None:
        self._name = name
        self._stream = Path(path).open(encoding=encoding, errors="replace")  # noqa: SIM115 - closed in `rows`
        self._buffer, self._at, self._ended = "", 0, False
        self._refill()
        self._is_mysql = bool(MYSQL.search(self._buffer))
        text = MYSQL_TEXT if self._is_mysql else r"'[^']*+(?:''[^']*+)*+'"
        comment = r"| \#[^\n]*+" if self._is_mysql else ""
        pattern = TOKEN.format(comment=comment, escaped=ESCAPED_TEXT, text=text)
        self._token = re.compile(pattern, re.VERBOSE | re.DOTALL)
        self._ahead: tuple[str, str] | None = None
        self._created: dict[str, list[str]] = {}  # the columns by CREATE TABLE

    def rows(self) -> Iterator[tuple[str, list[str], list[Any]]]:
        """Each row: the name of its table, the names of the columns, and the values."""
        with self._stream:
            while self._peek()[0] != "end":
                kind, value = self._take()
                word = value.upper() if kind == "word" else value
                if word in ("INSERT", "REPLACE"):
                    yield from self._insert()
                elif word == "COPY":
                    yield from self._copy()
                elif word == "CREATE":
                    self._create()
                elif word == "DELIMITER":  # routines, up to the line that sets it back
                    while (line := self._line()) and line.strip() != "DELIMITER ;":
                        pass
                elif word == "\\":  # a command of psql
                    self._line()
                elif word != ";":
                    self._skip_statement()

    def _insert(self) -> Iterator[tuple[str, list[str], list[Any]]]:
        while self._peek()[1].upper() != "INTO":  # INSERT OR IGNORE, LOW_PRIORITY ...
            if self._take()[1] in (";", ""):
                return
        self._take()
        table = self._table_name()
        columns = self._created.get(table, [])
        if self._take_if("("):
            columns = self._name_list()
        while not self._take_if("("):  # VALUES, after OVERRIDING SYSTEM VALUE in some
            if self._peek()[1].upper() in ("SELECT", "SET", "DEFAULT", "WITH", ";", ""):
                return self._skip_statement()
            self._take()
        has_more = True
        while has_more:
            values = [self._value()]
            while self._take_if(","):
                values.append(self._value())
            if not self._take_if(")"):
                raise self._damaged(f"a row of table {table} has no end")
            yield table, *self._fit(table, columns, values)
            has_more = self._take_if(",") and self._take_if("(")
        self._skip_statement()

    def _copy(self) -> Iterator[tuple[str, list[str], list[Any]]]:
        table = self._table_name()
        columns = self._name_list() if self._take_if("(") else self._created.get(table, [])
        rest = []
        while self._peek()[1] not in (";", ""):
            rest.append(self._take()[1].upper())
        self._take()
        if rest != ["FROM", "STDIN"]:
            return
        self._line()  # what is left of the line of COPY
        while (line := self._line()) and line.rstrip("\n") != "\\.":
            cells = line.removesuffix("\n").split("\t")
            values = [None if cell == "\\N" else POSTGRES_ESCAPE.sub(_unescape, cell) for cell in cells]
            yield table, *self._fit(table, columns, values)
        if not line:
            raise self._damaged(f"the rows of table {table} have no end")

    def _create(self) -> None:
        """Keep the columns of a new table; other statements are skipped."""
        while (word := self._peek()[1].upper()) not in ("TABLE", ";", "", "AS", "ON", "("):
            self._take()
            if word == "TRIGGER":
                has_block = False  # with statements inside, up to END
                while self._peek()[0] != "end":
                    token = self._take()[1].upper()
                    has_block |= token == "BEGIN"
                    if token == (";" if not has_block else "END") and (not has_block or self._peek()[1] == ";"):
                        return
        if word == "TABLE":
            self._take()
            while self._peek()[1].upper() in ("IF", "NOT", "EXISTS"):
                self._take()
            table, columns = self._table_name(), list[str]()
            while self._peek()[1] not in (";", "", ")") and self._take_if("(" if not columns else ","):
                kind, value = self._take()
                is_column = kind in ("quoted", "text") or (kind == "word" and value.upper() not in CONSTRAINTS)
                columns.append(_unquote(value) if is_column else "")
                self._skip_to(",", ")")
            self._created[table] = list(filter(None, columns))
        self._skip_statement()

    def _table_name(self) -> str:
        """A name, without the schema or the database before it."""
        name = _unquote(self._take()[1])
        while self._take_if("."):
            name = _unquote(self._take()[1])
        return name

    def _name_list(self) -> list[str]:
        names = [_unquote(self._take()[1])]
        while self._take_if(","):
            names.append(_unquote(self._take()[1]))
        if not self._take_if(")"):
            raise self._damaged("a list of columns has no end")
        return names

    def _value(self) -> Any:
        """A value of a row: a literal, or what dumps write around one."""
        kind, token = self._take()
        value: Any = None
        if kind == "text":
            value = self._read_text(token)
        elif kind == "escaped":
            value = POSTGRES_ESCAPE.sub(_unescape, token[2:-1].replace("''", "'"))
        elif kind == "quoted" and token[0] == '"':  # SQLite takes it for a text
            value = _unquote(token)
        elif kind == "number":
            value = float(token) if set(token) & set(".eE") else int(token)
        elif kind == "binary":
            digits = token[2:].rstrip("'")
            value = bytes.fromhex("0" * (len(digits) % 2) + digits)
        elif kind == "word" and token.upper() in CONSTANTS:
            value = CONSTANTS[token.upper()]
        elif kind == "word" and self._peek()[0] == "text":  # _utf8mb4 '...', N'...', TIMESTAMP '...'
            value = self._value()
        elif kind == "word" and self._take_if("("):
            value = self._call(token.upper())
        elif kind == "end":
            raise self._damaged("it ends inside a row")
        while self._peek()[1] in ("::", "||"):
            if self._take()[1] == "::":  # a type, which changes nothing here
                self._table_name()
            else:
                other = self._value()
                value = None if value is None or other is None else f"{value}{other}"
        if self._peek()[1] not in (",", ")"):  # an expression, or the type in CAST(... AS ...)
            value = value if self._peek()[1].upper() in ("AS", "USING") else None
            self._skip_to(",", ")")
        return value

    def _call(self, function: str) -> Any:
        """The value of a function that dumps use to write texts; null for any other."""
        values: list[Any] = []
        while not self._take_if(")"):
            values.append(self._value())
            self._take_if(",")
        if function in ("CAST", "CONVERT"):
            return values[0] if values else None
        if function in ("CHAR", "CHR") and all(isinstance(value, int) for value in values):
            return "".join(map(chr, values))
        if all(isinstance(value, str) for value in values):
            if function == "REPLACE" and len(values) == 3:  # SQLite writes line breaks with it
                return values[0].replace(values[1], values[2])
            if function == "UNISTR" and len(values) == 1:
                return POSTGRES_ESCAPE.sub(_unescape, values[0])
        return None

    def _read_text(self, token: str) -> str:
        """The text of a literal: in quotes, or of PostgreSQL between two dollar signs."""
        if token[0] == "$":
            tag = token[: token.index("$", 1) + 1]
            return token.removeprefix(tag).removesuffix(tag)
        text = token[1:-1].replace(2 * token[0], token[0])
        if self._is_mysql:
            return MYSQL_ESCAPE.sub(lambda match: MYSQL_LETTERS.get(match[1], match[1]), text)
        return text

    def _fit(self, table: str, columns: list[str], values: list[Any]) -> tuple[list[str], list[Any]]:
        """The names and values of a row; columns without names are numbered."""
        columns = columns or [str(number) for number in range(1, len(values) + 1)]
        if len(columns) != len(values):
            raise self._damaged(
                f"a row of table {table} has {format_count(len(values), 'value')}, not {len(columns)}"
            )
        return columns, values

    def _damaged(self, reason: str) -> DataError:
        return DataError(f"{self._name} is damaged: {reason}. Save the dump again.")

    def _skip_statement(self) -> None:
        self._skip_to()
        self._take()

    def _skip_to(self, *signs: str) -> None:
        """Move to one of these signs outside of any parentheses, or to the end of the statement."""
        depth = 0
        while (token := self._peek()[1]) not in (";", "") and not (depth <= 0 and token in signs):
            depth += (token == "(") - (token == ")")
            self._take()

    def _take_if(self, sign: str) -> bool:
        return self._peek()[1] == sign and bool(self._take())

    def _take(self) -> tuple[str, str]:
        token, self._ahead = self._peek(), None
        return token

    def _peek(self) -> tuple[str, str]:
        """The kind and the characters of the next token; the kind is 'end' after the last one."""
        while self._ahead is None:
            match = self._token.match(self._buffer, self._at)
            is_whole = match is not None and match.end() < len(self._buffer)
            if match and is_whole and match.lastgroup in ("sign", "word"):
                # A quote is a sign only where the text that it begins goes on in the next chunk.
                is_whole = not OPENS.match(self._buffer, self._at)
            if not is_whole and not self._ended:
                self._refill()
            elif match is None:
                self._ahead = ("end", "")
            else:
                self._at = match.end()
                kind = str(match.lastgroup)
                if kind == "sign" and match[0] in "'\"`":
                    raise self._damaged(f"{self._buffer[match.start() :][:40]!r} has no closing quote")
                if kind != "space":
                    self._ahead = (kind, match[0])
        return self._ahead

    def _line(self) -> str:
        """The rest of the line, with its end; empty at the end of the file."""
        while (end := self._buffer.find("\n", self._at)) < 0 and not self._ended:
            self._refill()
        line = self._buffer[self._at : end + 1 if end >= 0 else None]
        self._at += len(line)
        return line

    def _refill(self) -> None:
        """Read the next chunk, which is as long as what is kept: a long text is searched few times."""
        kept = self._buffer[self._at :]
        chunk = self._stream.read(max(CHUNK_CHARS, len(kept)))
        self._buffer, self._at, self._ended = kept + chunk, 0, not chunk


def _unquote(name: str) -> str:
    """A name without its quotes."""
    quote = {'"': '"', "`": "`", "[": "]"}.get(name[:1], "")
    return name[1:-1].replace(2 * quote, quote) if quote else name


def _unescape(match: re.Match[str]) -> str:
    if match.lastgroup == "letter":
        return LETTERS.get(match["letter"], match["letter"])
    return chr(int(match[str(match.lastgroup)], 8 if match.lastgroup == "octal" else 16))
