"""Rows of SQL dumps (.sql) of SQLite, MySQL and PostgreSQL: INSERT and COPY are read, and nothing is executed.

A dump is tokenized in chunks, because one INSERT may hold a whole table. A value that only a database could work
out, such as now(), is null.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator
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
Token = tuple[str, str]  # its kind, and its characters
COMMA, DOT, TYPE, JOIN = ("sign", ","), ("sign", "."), ("sign", "::"), ("sign", "||")
OPEN, CLOSE, END = ("sign", "("), ("sign", ")"), ("sign", ";")
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
    """Reads the statements of a dump one after another; what they hold is never in memory at once."""

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
        self._tokens = self._scan()
        self._created: dict[str, list[str]] = {}  # the columns by CREATE TABLE

    def rows(self) -> Iterator[tuple[str, list[str], list[Any]]]:
        """Each row: the name of its table, the names of the columns, and the values."""
        with self._stream:
            statement: list[Token] = []
            words: list[str] = []
            for token in self._tokens:
                word = token[1].upper() if token[0] == "word" else token[1]
                if not statement and word == "DELIMITER":  # routines, up to the line that sets it back
                    while (line := self._line()) and line.strip() != "DELIMITER ;":
                        pass
                elif not statement and word == "\\":  # a command of psql
                    self._line()
                elif word == "VALUES" and words[:1] in (["INSERT"], ["REPLACE"]) and "INTO" in words:
                    yield from self._read_values(*self._find_columns(statement, words.index("INTO")))
                    statement, words = [], []
                elif token != END or ("TRIGGER" in words and "BEGIN" in words and words[-1] != "END"):
                    statement.append(token)
                    words.append(word)
                else:
                    if words[:1] == ["COPY"] and words[-2:] == ["FROM", "STDIN"]:
                        yield from self._read_lines(*self._find_columns(statement, 0))
                    elif words[:1] == ["CREATE"] and "TABLE" in words[:4]:
                        at = words.index("TABLE") + 3 * (words[words.index("TABLE") + 1 :][:1] == ["IF"])
                        table, columns = self._find_columns(statement, at, CONSTRAINTS)
                        self._created[table] = columns
                    statement, words = [], []

    def _find_columns(
        self, statement: list[Token], at: int, excluded: Collection[str] = ()
    ) -> tuple[str, list[str]]:
        """The table that is named after this place, and the columns in the parentheses behind it."""
        at += 1
        while statement[at + 1 : at + 2] == [DOT]:  # behind the schema or the database
            at += 2
        table, columns = _unquote("".join(token for _, token in statement[at : at + 1])), list[str]()
        if statement[at + 1 : at + 2] != [OPEN]:
            return table, self._created.get(table, [])
        for entry in _split(_inside(statement[at + 1 :]), COMMA):
            if entry and (entry[0][0] != "word" or entry[0][1].upper() not in excluded):
                columns.append(_unquote(entry[0][1]))
        return table, columns

    def _read_values(self, table: str, columns: list[str]) -> Iterator[tuple[str, list[str], list[Any]]]:
        depth, row, has_ended = 0, list[Token](), False
        for token in self._tokens:
            depth += (token == OPEN) - (token == CLOSE)
            if token == END:
                break
            if has_ended:  # ON CONFLICT and the like come after the rows
                continue
            if token == OPEN and depth == 1:
                row = []
            elif token == CLOSE and not depth:
                yield table, *self._fit(table, columns, [self._value(each) for each in _split(row, COMMA)])
            elif depth:
                row.append(token)
            else:
                has_ended = token != COMMA
        if depth > 0:
            raise self._damaged(f"a row of table {table} has no end")

    def _read_lines(self, table: str, columns: list[str]) -> Iterator[tuple[str, list[str], list[Any]]]:
        self._line()  # what is left of the line of COPY
        while (line := self._line()) and line.rstrip("\n") != "\\.":
            cells = line.removesuffix("\n").split("\t")
            values = [None if cell == "\\N" else POSTGRES_ESCAPE.sub(_unescape, cell) for cell in cells]
            yield table, *self._fit(table, columns, values)
        if not line:
            raise self._damaged(f"the rows of table {table} have no end")

    def _fit(self, table: str, columns: list[str], values: list[Any]) -> tuple[list[str], list[Any]]:
        """The names and values of a row; columns without names are numbered."""
        columns = columns or [str(number) for number in range(1, len(values) + 1)]
        if len(columns) != len(values):
            counted = format_count(len(values), "value")
            raise self._damaged(f"a row of table {table} has {counted}, not {len(columns)}")
        return columns, values

    def _value(self, tokens: list[Token]) -> Any:
        """The value of a literal, or of what dumps write around one; of any other expression null."""
        if len(tokens) > 1:
            if JOIN in tokens and len(parts := _split(tokens, JOIN)) > 1:
                values = [self._value(part) for part in parts]
                return None if None in values else "".join(map(str, values))
            if tokens[1] == TYPE:  # 'x'::text
                return self._value(tokens[:1])
            if tokens[0][0] == "word" and tokens[1] == OPEN:
                return self._call(tokens[0][1].upper(), _inside(tokens[1:]))
            # _utf8mb4 'x', N'x', TIMESTAMP 'x'
            return self._value(tokens[1:]) if tokens[0][0] == "word" and tokens[1][0] == "text" else None
        kind, token = tokens[0] if tokens else ("", "")
        match kind:
            case "text":
                return self._read_text(token)
            case "escaped":
                return POSTGRES_ESCAPE.sub(_unescape, token[2:-1].replace("''", "'"))
            case "quoted" if token[0] == '"':  # SQLite takes it for a text
                return _unquote(token)
            case "number":
                return float(token) if set(token) & set(".eE") else int(token)
            case "binary":
                digits = token[2:].rstrip("'")
                return bytes.fromhex("0" * (len(digits) % 2) + digits)
        return CONSTANTS.get(token.upper())

    def _call(self, function: str, inside: list[Token]) -> Any:
        """The value of a function that dumps use to write texts; of any other null."""
        if function == "CAST":
            return self._value(inside[:1])
        values = [self._value(each) for each in _split(inside, COMMA)]
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

    def _damaged(self, reason: str) -> DataError:
        return DataError(f"{self._name} is damaged: {reason}. Save the dump again.")

    def _scan(self) -> Iterator[Token]:
        """The tokens of the dump, without spaces and comments."""
        while True:
            match = self._token.match(self._buffer, self._at)
            # What reaches to the end of the chunk may be longer.
            is_whole = match is not None and match.end() < len(self._buffer)
            if match and is_whole and match.lastgroup in ("sign", "word"):
                # A quote is a sign only where the text that it begins goes on in the next chunk.
                is_whole = not OPENS.match(self._buffer, self._at)
            if not is_whole and not self._ended:
                self._refill()
            elif match is None:
                return
            else:
                self._at = match.end()
                if match.lastgroup == "sign" and match[0] in "'\"`":
                    raise self._damaged(f"{self._buffer[match.start() :][:40]!r} has no closing quote")
                if match.lastgroup != "space":
                    yield str(match.lastgroup), match[0]

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


def _split(tokens: list[Token], sign: Token) -> list[list[Token]]:
    """The tokens between these signs, outside of any parentheses."""
    parts, depth = [list[Token]()], 0
    for token in tokens:
        depth += (token == OPEN) - (token == CLOSE)
        if token == sign and not depth:
            parts.append([])
        else:
            parts[-1].append(token)
    return parts


def _inside(tokens: list[Token]) -> list[Token]:
    """What is inside of the parentheses that begin here."""
    depth = 0
    for number, token in enumerate(tokens):
        depth += (token == OPEN) - (token == CLOSE)
        if not depth:
            return tokens[1:number]
    return tokens[1:]


def _unquote(name: str) -> str:
    """A name without its quotes."""
    quote = {'"': '"', "`": "`", "[": "]"}.get(name[:1], "")
    return name[1:-1].replace(2 * quote, quote) if quote else name


def _unescape(match: re.Match[str]) -> str:
    if match.lastgroup == "letter":
        return LETTERS.get(match["letter"], match["letter"])
    return chr(int(match[str(match.lastgroup)], 8 if match.lastgroup == "octal" else 16))
