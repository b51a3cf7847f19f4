"""From files to rows: JSON and JSONL, each row a dict of columns, each broken one a sentence with its place."""

from __future__ import annotations

import codecs
import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ...core.errors import DataError
from . import text_files

DEEPEST_LIST = 4  # how far down in an object a list of rows is looked for
LIST_COLUMN = "messages"
TOO_MANY_DIGITS = "a number of thousands of digits. Put it in quotes, as a text, or take it out."
NOT_SPACE = re.compile(r"\S")


class Row(NamedTuple):
    """One row by its place in the file; `problem` says why it has no columns.

    Of a conversation out of an export: how much of what was left out, and whether no reply is left.
    """

    number: int
    columns: Mapping[str, Any]
    problem: str = ""
    left_out: Mapping[str, int] = MappingProxyType({})
    without_reply: bool = False


@dataclass(frozen=True)
class Table:
    """The rows of a file as they are read, one after the other; what a place counts; notes on the reading."""

    name: str
    unit: str
    rows: Callable[[], Iterator[Row]]
    notes: tuple[str, ...] = ()
    what: str = ""  # how it was read, where that had to be found out


def json_table(path: Path, name: str) -> Table:
    """An array of rows, an object that holds one, or rows by line in spite of the name."""
    text, notes = text_files.text_of(path, name)
    if text.lstrip().startswith("["):
        return Table(name, "row", lambda: _elements(text, name), notes)
    try:
        whole = json.loads(text)
    except json.JSONDecodeError as error:
        if _lines_are_rows(text):
            said = f"{name} holds a row on each line: it was read as JSONL."
            return Table(name, "line", lambda: _text_rows(text.split("\n")), (*notes, said))
        raise DataError(f"{name}{_json_problem(error, text)}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(_beyond_python(error, name)) from error
    found = list(_numbered(_list_in(whole, name)))
    return Table(name, "row", lambda: iter(found), notes)


def _elements(text: str, name: str) -> Iterator[Row]:
    """The rows of an array, one after the other: all of them at once would take many times the file's size."""
    decoder, number = json.JSONDecoder(), 0
    at = _next(text, text.index("[") + 1)
    try:
        while not (text.startswith("]", at) and not number):
            value, at = decoder.raw_decode(text, at)
            number += 1
            yield _row(number, value)
            at = _next(text, at)
            if not text.startswith(",", at):
                break
            at = _next(text, at + 1)
        _refuse_rest(text, at)
        if not number:
            raise DataError(f"{name} holds no rows. Put rows into it, or take it out of the data.")
    except json.JSONDecodeError as error:
        raise DataError(f"{name}{_json_problem(error, text)}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(_beyond_python(error, name)) from error


def _next(text: str, at: int) -> int:
    """Where the next sign stands that is no space."""
    found = NOT_SPACE.search(text, at)
    return found.start() if found else len(text)


def _refuse_rest(text: str, at: int) -> None:
    """An array ends with its bracket, and with nothing behind it."""
    if not text.startswith("]", at):
        raise json.JSONDecodeError("Expecting ',' delimiter", text, at)
    if (rest := _next(text, at + 1)) < len(text):
        raise json.JSONDecodeError("Extra data", text, rest)


def jsonl_table(path: Path, name: str) -> Table:
    """A row on each line, read as a stream; or an array in spite of the name."""
    with text_files.opened(path, name) as file:
        head = file.read(4096)
    if not head.strip(b"\x00 \t\r\n\xef\xbb\xbf"):
        raise DataError(f"{name} is empty. Put rows into it, or take it out of the data.")
    text_files.refuse_other_formats(head, name)
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)) or head[:64].count(0) > 16:
        text, notes = text_files.text_of(path, name)
        return Table(name, "line", lambda: _text_rows(text.split("\n")), notes)
    begins = head.removeprefix(codecs.BOM_UTF8).lstrip()
    opens = begins.split(b"\n")[0].strip() == b"{" and b"\n" in begins
    if opens or (begins.startswith(b"[") and not _a_line_is_whole(path, name)):
        table = json_table(path, name)
        said = f"{name} does not hold a row on each line: it was read as JSON."
        return Table(name, table.unit, table.rows, (*table.notes, said))
    return Table(name, "line", lambda: _streamed(path, name))


def _a_line_is_whole(path: Path, name: str) -> bool:
    """Whether the first line of what begins with a bracket is a row by itself, with others behind it."""
    with text_files.opened(path, name) as file:
        first, more = file.readline(), file.readline()
    try:
        return isinstance(json.loads(first), list) and bool(more.strip())
    except (ValueError, RecursionError):
        return False


def _streamed(path: Path, name: str) -> Iterator[Row]:
    with text_files.opened(path, name) as file:
        for number, line in enumerate(file, start=1):
            if number == 1:
                line = line.removeprefix(codecs.BOM_UTF8)
            try:
                text = line.decode("utf-8")
            except UnicodeDecodeError as error:
                yield Row(number, {}, f"byte {error.start + 1} is not UTF-8. Save the file as UTF-8.")
                continue
            yield from _row_of_line(number, text)


def _text_rows(lines: Iterable[str]) -> Iterator[Row]:
    for number, line in enumerate(lines, start=1):
        yield from _row_of_line(number, line)


def _row_of_line(number: int, line: str) -> Iterator[Row]:
    """The row on a line; nothing where the line is blank."""
    if not line or line.isspace():
        return
    try:
        yield _row(number, json.loads(line))
    except json.JSONDecodeError as error:
        yield Row(number, {}, _line_problem(error, line))
    except RecursionError:
        yield Row(number, {}, "is nested too deeply. A row is an object of columns.")
    except ValueError:  # JSON in itself, but Python reads no number of so many digits
        yield Row(number, {}, f"holds {TOO_MANY_DIGITS}")


def _line_problem(error: json.JSONDecodeError, line: str) -> str:
    if line.strip() in ("{", "["):
        return "only opens an object. Put each row on one line, or save all of them as an array in a .json file."
    return f"{_found(error, line)}. A row is one whole JSON object on its line."


def _json_problem(error: json.JSONDecodeError, text: str) -> str:
    """What is wrong in a whole file, with its line."""
    if not text.strip():
        return " is empty. Put rows into it, or take it out of the data."
    line = text.split("\n")[error.lineno - 1]
    return f", line {error.lineno}: {_found(error, line)}. The file must be one whole JSON array of rows."


def _found(error: json.JSONDecodeError, line: str) -> str:
    """What a JSON error means to somebody who did not write the parser."""
    at = error.colno - 1
    rest = line[at : at + 20].strip()
    if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string"):
        return "ends in the middle"
    if error.msg.startswith("Invalid control character"):
        what = "a line break or control character stands inside a text; write \\n there"
    elif error.msg.startswith("Invalid \\escape"):
        what = "a backslash stands alone; write it twice"
    elif rest[:1] in "'‘’“”" or "property name" in error.msg:
        what = 'names and texts stand in straight double quotes (")'
    elif error.msg == "Extra data":
        what = "something follows after the end"
    else:
        what = f"{error.msg[0].lower()}{error.msg[1:]}"
    return f"at column {error.colno} ({rest!r}): {what}"


def _beyond_python(error: Exception, name: str) -> str:
    """What is JSON in itself, but too deep for Python, or a number too long for it."""
    if isinstance(error, RecursionError):
        return f"{name} is nested too deeply to be rows. A row is an object of columns."
    return f"{name} holds {TOO_MANY_DIGITS}"


def _lines_are_rows(text: str) -> bool:
    """Whether the first two lines that are not blank are objects of their own."""
    lines = [line for line in text.split("\n", 20)[:20] if line.strip()][:2]
    try:
        return len(lines) == 2 and all(isinstance(json.loads(line), dict) for line in lines[:1])
    except (ValueError, RecursionError):
        return False


def _list_in(whole: Any, name: str) -> list[Any]:
    """The rows in what a file holds: the array itself, the longest one inside, or columns of equal length."""
    if isinstance(whole, list):
        found = whole
    elif isinstance(whole, dict) and export_column(whole):
        found = [whole]
    elif isinstance(whole, dict):
        found = max(_lists(whole, DEEPEST_LIST), key=len, default=[]) or _columns(whole) or [whole]
    else:
        raise DataError(f"{name} holds {kind(whole)}. It must hold a JSON array of rows.")
    if not found or found == [{}]:
        raise DataError(f"{name} holds no rows. Put rows into it, or take it out of the data.")
    return found


def export_column(columns: Mapping[str, Any]) -> str:
    """The column that holds an exported conversation's messages (see chat_exports.py), or none."""
    if isinstance(columns.get("chat_messages"), list):
        return "chat_messages"
    nodes = columns.get("mapping")
    are_nodes = isinstance(nodes, dict) and any(isinstance(n, dict) and "message" in n for n in nodes.values())
    return "mapping" if are_nodes or (nodes is not None and "current_node" in columns) else ""


def _lists(node: Mapping[str, Any], depth: int) -> Iterator[list[Any]]:
    """Lists of objects anywhere below, but not the messages of a single chat."""
    for value in node.values():
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            if not _is_chat(value):
                yield value
        elif isinstance(value, dict) and depth:
            yield from _lists(value, depth - 1)
        elif isinstance(value, list) and value and all(isinstance(v, list) and _is_chat(v) for v in value):
            yield value


def _is_chat(values: list[Any]) -> bool:
    return bool(values) and all(
        isinstance(v, dict) and ({"role", "content"} <= v.keys() or {"from", "value"} <= v.keys()) for v in values
    )


def _columns(node: Mapping[str, Any]) -> list[Any] | None:
    """Rows out of columns: lists of equal length, or objects with the same keys, as pandas writes them."""
    values = list(node.values())
    if values and all(isinstance(v, dict) for v in values):
        values = [list(v.values()) for v in values]
    if (
        not values
        or not all(isinstance(v, list) and not _is_chat(v) for v in values)
        or len({len(v) for v in values}) != 1
    ):
        return None
    return [dict(zip(node, row, strict=True)) for row in zip(*values, strict=True)]


def _numbered(values: Iterable[Any]) -> Iterator[Row]:
    return (_row(number, value) for number, value in enumerate(values, start=1))


def _row(number: int, value: Any) -> Row:
    """A value as a row: an object as it is, a text or a list of messages under the name it would have."""
    if isinstance(value, dict):
        return Row(number, value)
    if isinstance(value, str):
        return Row(number, {"text": value})
    if isinstance(value, list) and _is_chat(value):
        return Row(number, {LIST_COLUMN: value})
    return Row(number, {}, f"is {kind(value)}. A row is an object of columns.")


def kind(value: Any) -> str:
    """What a JSON value is, in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return f"{str(value).lower()}"
    if isinstance(value, (int, float)):
        return f"a number ({value:g})" if abs(value) < 1e15 else "a number"
    names: dict[type, str] = {str: "a text", list: "a list", dict: "an object", bytes: "binary data, not text"}
    return names.get(type(value), type(value).__name__)
