"""Rows, the names of their columns, and their reader from JSON and JSONL; a broken row is a message."""

from __future__ import annotations

import codecs
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from types import MappingProxyType
from typing import Any, NamedTuple

from ...core.errors import DataError
from ...train_utils import format_count
from . import text_files
from .reader_process import BINARY

CHAT_COLUMNS = ("messages", "conversations", "conversation", "dialogue", "dialog", "chat", "turns")
TEXT_COLUMNS = ("text", "content", "document", "story", "body")
PAIR_COLUMNS: tuple[tuple[str, str], ...] = (
    *(("instruction", answer) for answer in ("output", "response", "answer", "completion")),
    ("input", "output"),
    *(("question", answer) for answer in ("answer", "response", "output")),
    *(("query", answer) for answer in ("answer", "response")),
    *(("prompt", answer) for answer in ("response", "output", "answer")),
    ("user", "assistant"),
    ("human", "assistant"),
    ("q", "a"),
)
# The two replies of a preference; a row with both is read with the first, or with the second in its place.
CHOSEN, REJECTED = "chosen", "rejected"
COMPLETION_PAIRS = (("prompt", "completion"), ("prompt", "generation"), ("prompt", CHOSEN))
PREFERENCE_PAIRS = tuple((asked, CHOSEN) for asked in ("instruction", "question", "query", "input"))
CONTEXT_COLUMNS = ("input", "context")
# Of which conversation, which turn, which message and the answer to which one a row is.
CONVERSATION_ID_COLUMNS = (
    (
        *("conversation_id", "conv_id", "conversation_hash", "conversation_no", "dialogue_id", "dialog_id"),
        *("chat_id", "message_tree_id", "thread_id", "session_id", "conversation"),
    ),
    (
        *("turn", "turn_id", "turn_index", "turn_idx", "turn_number", "turn_no", "utterance_idx"),
        "message_index",
    ),
    ("message_id", "id"),
    ("parent_id", "parent_message_id", "parent"),
)
# Columns that never hold the texts of a row.
ID_COLUMNS = {column for names in CONVERSATION_ID_COLUMNS for column in names} - {"conversation", "id"}
# {"data": {"train": {"rows": [...]}}} has three levels.
EXPORT_COLUMNS = {
    "ChatGPT": {"mapping", "current_node"},
    "Claude": {"chat_messages"},
    "TextGen": {"internal", "visible"},
    "older TextGen": {"data", "data_visible"},
    "SillyTavern": {"is_user", "mes"},
    "Discord": {"guild", "channel", "messages"},
    "Telegram": {"messages", "date_unixtime"},
    "Messenger or Instagram": {"messages", "sender_name", "timestamp_ms"},
}
FIRST_ROWS = 20  # that show which program has exported them
MAX_LIST_DEPTH = 4  # the depth to which an object is searched for a list of rows
MESSAGES_COLUMN = "messages"
PRIVATE_COLUMN = "private"  # true in each row of a copy of private chats
ENDS_TOO_EARLY = "ends too early"
JSON_HINT = 'Put keys and texts in straight double quotes ("). In a text, write a line break as \\n and \\ as \\\\'
NOT_SPACE = re.compile(r"\S")


class Row(NamedTuple):
    """One row and its number in the file; `problem` says why it has no columns."""

    number: int
    columns: Mapping[str, Any]
    problem: str = ""
    left_out: Mapping[str, int] = MappingProxyType({})  # what was dropped from a conversation of an export
    without_reply: bool = False  # a conversation of an export
    # Of a preference: the same row with the reply that is worse, or whether its reply is a good one.
    rejected: Mapping[str, Any] | None = None
    desirable: bool | None = None


@dataclass(frozen=True)
class Table:
    """The rows of a file, read one by one; what the row numbers count; notes on the reading."""

    name: str
    unit: str
    rows: Callable[[], Iterator[Row]]
    notes: tuple[str, ...] = ()
    what: str = ""  # how it was read, where that had to be detected
    private: bool = False  # chats between people, or with a character


def read_json(path: Path, name: str) -> Table:
    """An array of rows, an object that holds one, or a row on each line in spite of the suffix."""
    text, notes = text_files.read_text(path, name)
    if text.lstrip().startswith("["):
        return Table(name, "row", lambda: _array_rows(text, name), notes)
    try:
        value = json.loads(text)
    except json.JSONDecodeError as error:
        # Rows on lines: the first line that is not blank is an object of its own, with another line after it.
        lines = [line for line in text.split("\n", 20)[:20] if line.strip()][:2]
        if len(lines) == 2 and isinstance(_parse_or_none(lines[0]), dict):
            note = f"{name} has one row per line, so it was read as JSONL."
            return Table(name, "line", lambda: _rows_of_lines(text.split("\n")), (*notes, note))
        raise DataError(f"{name}{_json_problem(error, text)}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{name} {_limit_problem(error)}") from error
    if not isinstance(value, dict):
        raise DataError(f"{name} contains {describe_value(value)}. It must contain a JSON array of rows.")
    card = value["data"] if isinstance(value.get("data"), dict) else value
    if {"first_mes", "mes_example"} <= card.keys():
        raise DataError(
            f"{name} is a character card. It has no replies to train on. Choose chats with the character instead."
        )
    # The object is a row itself, or holds the rows: as its longest list, or as columns of equal length.
    found: list[Any] = [value]
    if not find_program([value]):
        # Of an account at Telegram, the list of contacts may be longer than that of chats.
        lists = _find_lists(value, MAX_LIST_DEPTH)
        place, found = max(lists, key=lambda each: (find_program(each[1]) != "", len(each[1])), default=("", []))
        if found and _is_row(value, found):
            found = [value]
        elif found and [*value] != [place]:
            entries = format_count(len(found), "entry", "entries")
            notes = (*notes, f"Training PRO reads only '{place}' ({entries}) of {name}.")
        # Columns as pandas writes them: lists of equal length, or objects with the same keys.
        columns = list(value.values())
        if columns and all(isinstance(column, dict) for column in columns):
            columns = [list(column.values()) for column in columns]
        are_columns = all(isinstance(column, list) and not _is_chat(column) for column in columns)
        if not found and columns and are_columns and len(set(map(len, columns))) == 1:
            found = [dict(zip(value, row, strict=True)) for row in zip(*columns, strict=True)]
        found = found or [value]
    if found == [{}]:
        raise DataError(f"{name} has no rows. Add rows to it, or remove it from the dataset.")
    rows = [_to_row(number, row) for number, row in enumerate(found, start=1)]
    return Table(name, "row", lambda: iter(rows), notes)


def _parse_or_none(text: str | bytes) -> Any:
    """A JSON value; None for what is none."""
    try:
        return json.loads(text)
    except (ValueError, RecursionError):
        return None


def _array_rows(text: str, name: str) -> Iterator[Row]:
    """The rows of an array, one by one: all at once would take many times the file's size in memory."""

    def skip_spaces(position: int) -> int:
        match = NOT_SPACE.search(text, position)
        return match.start() if match else len(text)

    decoder, number = json.JSONDecoder(), 0
    position = skip_spaces(text.index("[") + 1)
    try:
        while not (text.startswith("]", position) and not number):
            value, position = decoder.raw_decode(text, position)
            number += 1
            yield _to_row(number, value)
            position = skip_spaces(position)
            if not text.startswith(",", position):
                break
            position = skip_spaces(position + 1)
        if not text.startswith("]", position):
            raise json.JSONDecodeError("Expecting ',' delimiter", text, position)
        if (rest := skip_spaces(position + 1)) < len(text):
            raise json.JSONDecodeError("Extra data", text, rest)
        if not number:
            raise DataError(f"{name} has no rows. Add rows to it, or remove it from the dataset.")
    except json.JSONDecodeError as error:
        raise DataError(f"{name}{_json_problem(error, text)}") from error
    except (RecursionError, ValueError) as error:
        raise DataError(f"{name} {_limit_problem(error)}") from error


def read_jsonl(path: Path, name: str) -> Table:
    """A row on each line, read as a stream; or an array in spite of the suffix."""
    with text_files.open_binary(path, name) as file:
        head = file.read(4096)
    text_files.refuse_other_formats(head, name)
    # UTF-16 can't be read line by line as bytes, so such a file is read as a whole.
    if head.startswith((codecs.BOM_UTF16_LE, codecs.BOM_UTF16_BE)):
        text, notes = text_files.read_text(path, name)
        return Table(name, "line", lambda: _rows_of_lines(text.split("\n")), notes)
    beginning = head.removeprefix(codecs.BOM_UTF8).lstrip()
    is_array = beginning.split(b"\n")[0].strip() == b"{" and b"\n" in beginning  # an indented object
    if beginning.startswith(b"["):  # an array, unless the first line is a whole row, with more lines after it
        with text_files.open_binary(path, name) as file:
            first, second = file.readline(), file.readline()
        is_array = not (isinstance(_parse_or_none(first), list) and second.strip())
    if is_array:
        table = read_json(path, name)
        note = f"{name} does not have one row per line, so it was read as JSON."
        return Table(name, table.unit, table.rows, (*table.notes, note))

    def rows() -> Iterator[Row]:
        with text_files.open_binary(path, name) as file:
            yield from _rows_of_lines(file)

    return Table(name, "line", rows)


def _rows_of_lines(lines: Iterable[str | bytes]) -> Iterator[Row]:
    """The row of each line that is not blank; in place of a broken one, what is wrong with it."""
    for number, line in enumerate(lines, start=1):
        try:
            text = line if isinstance(line, str) else line.decode("utf-8-sig" if number == 1 else "utf-8")
            if not text or text.isspace():
                continue
            row = _to_row(number, json.loads(text))
        except UnicodeDecodeError as error:
            row = Row(number, {}, f"byte {error.start + 1} is not UTF-8. Save the file as UTF-8.")
        except json.JSONDecodeError as error:
            row = Row(number, {}, f"{_explain(error, text)}. Each row must be a complete JSON object on one line.")
        except (RecursionError, ValueError) as error:
            row = Row(number, {}, _limit_problem(error))
        yield row


def _json_problem(error: json.JSONDecodeError, text: str) -> str:
    """The problem of a whole file, with the line."""
    explanation = _explain(error, text.split("\n")[error.lineno - 1])
    if explanation == ENDS_TOO_EARLY:
        explanation = f"the file {explanation}"
    return f", line {error.lineno}: {explanation}. The file must be one complete JSON array of rows."


def _explain(error: json.JSONDecodeError, line: str) -> str:
    """Where JSON is broken, and what may be wrong there."""
    if error.pos >= len(error.doc.rstrip()) or error.msg.startswith("Unterminated string"):
        return ENDS_TOO_EARLY
    rest = line[error.colno - 1 : error.colno + 19].strip()
    return f"at column {error.colno} ({rest!r}): {error.msg[0].lower()}{error.msg[1:]}. {JSON_HINT}"


def _limit_problem(error: Exception) -> str:
    """The problem of valid JSON that Python does not read."""
    is_deep = isinstance(error, RecursionError)
    return "is nested too deeply." if is_deep else "contains a number with thousands of digits."


def find_program(rows: Iterable[Any]) -> str:
    """The program that exports such rows, as conversations or parts of one; or nothing."""
    for row in islice((row for row in rows if isinstance(row, Mapping)), FIRST_ROWS):
        names, messages = set(row), row.get(MESSAGES_COLUMN)
        if isinstance(messages, list) and messages and isinstance(messages[0], dict):
            names |= messages[0].keys()  # by which a messenger's chats differ from others
        for program, needed in EXPORT_COLUMNS.items():
            if needed <= names:
                return program
    return ""


def _find_lists(node: Mapping[str, Any], depth: int, above: str = "") -> Iterator[tuple[str, list[Any]]]:
    """Lists of objects at any depth, and where they are, but not the messages of a single chat."""
    for key, value in node.items():
        if isinstance(value, list) and value and all(isinstance(v, dict) for v in value):
            if not _is_chat(value):
                yield above + key, value
        elif isinstance(value, dict) and depth:
            yield from _find_lists(value, depth - 1, f"{above}{key}.")
        elif isinstance(value, list) and value and all(isinstance(v, list) and _is_chat(v) for v in value):
            yield above + key, value


def _is_row(value: Mapping[str, Any], entries: Sequence[Any]) -> bool:
    """Whether an object with a list of entries is a row itself: a question with its answer, a chat, or a text."""
    texts = {key.lower(): each for key, each in value.items() if isinstance(each, str)}
    chats = {key.lower() for key, each in value.items() if isinstance(each, list) and _is_chat(each)}
    names = {key.lower() for key in entries[0]} if isinstance(entries[0], dict) else set(CHAT_COLUMNS)
    if not chats.intersection(CHAT_COLUMNS) and (find_pair(dict.fromkeys(names, "")) or names & {*CHAT_COLUMNS}):
        return False  # the entries are rows
    # A shorter text is the title of a document whose parts are the entries.
    length = max((len(texts[name]) for name in TEXT_COLUMNS if name in texts), default=0)
    return bool(find_pair(texts) or chats.intersection(CHAT_COLUMNS) or length > len(str(entries[0])))


def _is_chat(values: list[Any]) -> bool:
    return bool(values) and all(
        isinstance(v, dict) and ({"role", "content"} <= v.keys() or {"from", "value"} <= v.keys()) for v in values
    )


def _to_row(number: int, value: Any) -> Row:
    """A value as a row: an object unchanged, a text or a list of messages under its usual column name."""
    if isinstance(value, dict):
        return Row(number, value)
    if isinstance(value, str):
        return Row(number, {"text": value})
    if isinstance(value, list) and _is_chat(value):
        return Row(number, {MESSAGES_COLUMN: value})
    return Row(
        number, {}, f"is {describe_value(value)}. Each row must be a JSON object whose keys are column names."
    )


def number_text(value: Any) -> str | None:
    """A number of a table, such as a label, as text; NaN and Infinity stand for none."""
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return str(value) if is_number and math.isfinite(value) else None


def describe_value(value: Any) -> str:
    """A JSON value in words."""
    if value is None:
        return "null"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, (int, float)):
        return f"a number ({value:g})" if abs(value) < 1e15 else "a number"
    if isinstance(value, dict) and BINARY in value:
        return BINARY
    names: dict[type, str] = {str: "a string", list: "a list", dict: "an object"}
    return names.get(type(value), type(value).__name__)


def find_pair(columns: Mapping[str, str]) -> tuple[str, str] | None:
    """The first known pair of question and answer among the columns."""
    pairs = (*PAIR_COLUMNS, *COMPLETION_PAIRS, *PREFERENCE_PAIRS)
    return next((pair for pair in pairs if set(pair) <= columns.keys()), None)
