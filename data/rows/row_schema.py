"""What the columns of a row mean: a chat, a filled template or a text; found by their names, with the reason."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any, NamedTuple, Protocol

from ...core.errors import DataError
from ..readers import CHAT_COLUMNS, COMPLETION, MORE_COLUMNS, TEXT_COLUMNS, Row, kind, pair_in

ROLES = {
    "human": "user",
    "user": "user",
    "prompter": "user",
    "customer": "user",
    "gpt": "assistant",
    "assistant": "assistant",
    "model": "assistant",
    "bot": "assistant",
    "chatgpt": "assistant",
    "bard": "assistant",
    "bing": "assistant",
    "ai": "assistant",
    "agent": "assistant",
    "system": "system",
    "developer": "system",
    "tool": "tool",
    "function": "tool",
    "observation": "tool",
    "function_response": "tool",
    "ipython": "tool",
}
WRITTEN_LIST = re.compile(r"\s*\[\s*\{")
OURS_ALONE = frozenset({"train", "weight", "from", "value", "role", "content"})


class BadRowError(ValueError):
    """Why a row cannot be learned from, as the end of a sentence that begins with its place."""


class Message(NamedTuple):
    """One turn of a chat as a template takes it; `learned` is the row's own word on it, if it has one."""

    fields: Mapping[str, Any]
    learned: bool | None = None

    @property
    def role(self) -> str:
        return str(self.fields["role"])

    @property
    def content(self) -> str:
        return str(self.fields["content"])


@dataclass(frozen=True)
class Chat:
    """A row that goes through a chat template."""

    messages: tuple[Message, ...]
    tools: Sequence[Any] = ()


@dataclass(frozen=True)
class Written:
    """A row whose text is fixed; `reply` is where its reply begins, None where it has none."""

    text: str
    reply: int | None = None


class Shape(Protocol):
    """How the rows of a file are read."""

    @property
    def reason(self) -> str:
        """What was found, and why."""
        ...

    @property
    def has_replies(self) -> bool: ...

    def of(self, columns: Mapping[str, Any]) -> Chat | Written:
        """The row's meaning; BadRowError says what is wrong with it."""
        ...


def found(rows: Sequence[Row], name: str, system: str) -> Shape:
    """The shape that the columns of the first rows show; a DataError where they show none."""
    columns = _columns(rows)
    for column in CHAT_COLUMNS:
        if column in columns and _holds_lists(rows, column):
            return Chats(column, system, f"chats, since the rows have '{column}'")
        if column in columns and _holds_written_lists(rows, column):
            return Chats(column, system, f"chats, since the rows have lists of messages written out in '{column}'")
    if set(COMPLETION) <= columns.keys():
        if _holds_lists(rows, COMPLETION[0]):
            return Chats(COMPLETION, system, "chats in 'prompt' and 'completion'")
        return Completion(*COMPLETION, "'prompt' and 'completion', one after the other as they are")
    pair = pair_in(columns)
    if pair:
        return pair_shape(pair, columns, system)
    text = next((c for c in TEXT_COLUMNS if c in columns), "") or _only_text(rows)
    if text:
        return Plain(text, f"texts, since the rows have '{text}' and no other columns that are known")
    raise DataError(_nothing_known(name, columns))


def are_known(rows: Sequence[Row]) -> bool:
    """Whether the columns of these rows mean something."""
    try:
        found(rows, "", "")
    except DataError:
        return False
    return True


def pair_shape(pair: tuple[str, str], columns: Mapping[str, str], system: str) -> Pair:
    """Questions and answers in two columns, with a third where there is one."""
    question, answer = columns[pair[0]], columns[pair[1]]
    more = next((columns[c] for c in MORE_COLUMNS if c in columns and columns[c] not in (question, answer)), "")
    said = f"'{question}' and '{answer}'" if not more else f"'{question}', '{more}' and '{answer}'"
    own_system = columns.get("system", "")
    return Pair(question, more, answer, own_system, system, f"questions and answers, since the rows have {said}")


def _columns(rows: Sequence[Row]) -> dict[str, str]:
    """The columns of some rows: their names in small letters, and as they are."""
    return {str(name).strip().lower(): str(name) for row in rows for name in row.columns}


def _holds_lists(rows: Sequence[Row], column: str) -> bool:
    return any(isinstance(_value(row.columns, column), (list, tuple)) for row in rows)


def _holds_written_lists(rows: Sequence[Row], column: str) -> bool:
    return any(isinstance(_list_in(_value(row.columns, column)), list) for row in rows)


def _list_in(value: Any) -> Any:
    """A list of messages, also one written out as a table has to hold it: in JSON, or as Python writes it."""
    if not isinstance(value, str) or not WRITTEN_LIST.match(value):
        return value
    for read in (json.loads, ast.literal_eval):
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return read(value.strip())
    return value


def _value(columns: Mapping[str, Any], name: str) -> Any:
    """A column's value, whatever the case of its name and the spaces around it."""
    if name in columns:
        return columns[name]
    name = name.strip().lower()
    return next((value for key, value in columns.items() if str(key).strip().lower() == name), None)


def _only_text(rows: Sequence[Row]) -> str:
    """The one column that holds texts, if it is one."""
    found = {key for row in rows for key, value in row.columns.items() if isinstance(value, str)}
    return str(found.pop()) if len(found) == 1 else ""


def _nothing_known(name: str, columns: Mapping[str, str]) -> str:
    if not columns:
        return f'{name}: no row has any columns. A row is an object such as {{"instruction": ..., "output": ...}}.'
    there = ", ".join(list(columns.values())[:12])
    # No example out of these names: taken as it stands, it would teach the wrong column as well as the right one.
    return (
        f"{name}: the rows have the columns {there}, which are none that are known. Rename them to instruction "
        "and output, to messages or to text, or say which is which under Columns (instruction=QUESTIONS "
        "output=ANSWERS or text=TEXTS, with your names for QUESTIONS, ANSWERS or TEXTS; one with spaces in "
        '"quotes"), or choose a format file that names them.'
    )


@dataclass(frozen=True)
class Plain:
    """A text in one column."""

    column: str
    reason: str
    has_replies: bool = False

    def of(self, columns: Mapping[str, Any]) -> Written:
        return Written(text_in(columns, self.column))


@dataclass(frozen=True)
class Completion:
    """A prompt and what follows it, as they are."""

    prompt: str
    completion: str
    reason: str
    has_replies: bool = True

    def of(self, columns: Mapping[str, Any]) -> Written:
        prompt = text_in(columns, self.prompt)
        return Written(prompt + text_in(columns, self.completion), len(prompt))


@dataclass(frozen=True)
class Pair:
    """A question and its answer, as a chat of two turns."""

    question: str
    more: str
    answer: str
    own_system: str
    system: str
    reason: str
    has_replies: bool = True

    def of(self, columns: Mapping[str, Any]) -> Chat:
        question, answer = text_in(columns, self.question), text_in(columns, self.answer)
        if self.more and (more := optional_text_in(columns, self.more)):
            question = f"{question}\n\n{more}"
        system = (optional_text_in(columns, self.own_system) if self.own_system else "") or self.system
        return Chat((*_system(system), _message("user", question), _message("assistant", answer)))


def _system(text: str) -> tuple[Message, ...]:
    return (_message("system", text),) if text.strip() else ()


def _message(role: str, content: str) -> Message:
    return Message({"role": role, "content": content})


@dataclass(frozen=True)
class Chats:
    """Lists of messages, in one column or in a prompt's and a completion's."""

    column: str | tuple[str, ...]
    system: str
    reason: str
    has_replies: bool = True

    def of(self, columns: Mapping[str, Any]) -> Chat:
        names = (self.column,) if isinstance(self.column, str) else self.column
        messages = [message for name in names for message in _messages(columns, name)]
        if not any(m.role == "assistant" for m in messages):
            raise BadRowError("has no message of the assistant. Its role is 'assistant', or 'gpt' under 'from'.")
        own = _value(columns, "system")
        system = own if isinstance(own, str) and own.strip() else self.system
        if messages[0].role != "system":
            messages = [*_system(system), *messages]
        tools = _value(columns, "tools")
        return Chat(tuple(messages), tools if isinstance(tools, list) else ())


def _messages(columns: Mapping[str, Any], name: str) -> list[Message]:
    value = _value(columns, name)
    if isinstance(value, str) and name == COMPLETION[0]:
        value = [{"role": "user", "content": value}]
    if name in CHAT_COLUMNS:
        value = _list_in(value)
    if value is None:
        raise BadRowError(f"has no '{name}'.")
    if not isinstance(value, (list, tuple)) or not value:
        raise BadRowError(f"'{name}' is {'empty' if value == [] else kind(value)}. It must be a list of messages.")
    said = [each for each in enumerate(value, start=1) if not _is_no_system(each[1])]
    return [_read_message(number, message) for number, message in said]


def _is_no_system(value: Any) -> bool:
    """A blank system message, which some data sets put where there is none."""
    if not isinstance(value, Mapping) or str(value.get("role", value.get("from"))).strip().lower() != "system":
        return False
    return str(value.get("content", value.get("value")) or "").strip() == ""


def _read_message(number: int, value: Any) -> Message:
    """A message of OpenAI's kind (role, content) or ShareGPT's (from, value)."""
    if not isinstance(value, Mapping):
        raise BadRowError(f"message {number} is {kind(value)}. A message has a role and a content.")
    role = value.get("role", value.get("from"))
    if not isinstance(role, str) or role.strip().lower() not in ROLES:
        known = "system, user, assistant or tool"
        raise BadRowError(f"message {number} has {_role_found(role)}. Its role must be {known} (or human, gpt).")
    content = _content(number, value)
    more = {key: field for key, field in value.items() if key not in OURS_ALONE and field is not None}
    return Message({"role": ROLES[role.strip().lower()], "content": content, **more}, _learned(number, value))


def _role_found(role: Any) -> str:
    return "no role" if role is None else f"the role {role!r}"


def _content(number: int, value: Mapping[str, Any]) -> str:
    content = value.get("content", value.get("value"))
    if isinstance(content, list):
        parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
        if not all(isinstance(part, str) for part in parts):
            raise BadRowError(f"message {number} holds more than text. Only texts can be learned here.")
        content = "".join(str(part) for part in parts)
    if content is None and value.get("tool_calls"):
        return ""
    if not isinstance(content, str):
        raise BadRowError(f"the content of message {number} is {kind(content)}. It must be a text.")
    if not content.strip() and not value.get("tool_calls"):
        raise BadRowError(f"message {number} is empty. Write it, or take it out.")
    return content


def _learned(number: int, value: Mapping[str, Any]) -> bool | None:
    """What the row itself says of a message: 'train' true or false, or 'weight' 0 or 1."""
    if isinstance(train := value.get("train"), bool):
        return train
    weight = value.get("weight")
    if weight is None and train is None:
        return None
    if isinstance(weight, (int, float)) and weight in (0, 1):
        return bool(weight)
    raise BadRowError(
        f"message {number} has train = {train!r}, weight = {weight!r}. It takes true or false, 1 or 0."
    )


def text_in(columns: Mapping[str, Any], name: str) -> str:
    """The text of a column that must have one."""
    value = _value(columns, name)
    if value is None:
        there = ", ".join(map(str, columns)) or "none"
        raise BadRowError(
            f"'{name}' is null." if name in columns else f"has no '{name}'; its columns are: {there}."
        )
    if not isinstance(value, str):
        raise BadRowError(f"'{name}' is {kind(value)}. It must be a text, in quotes.")
    if not value.strip():
        raise BadRowError(f"'{name}' is empty. Fill it, or take the row out.")
    return value


def optional_text_in(columns: Mapping[str, Any], name: str) -> str:
    """The text of a column that may be missing or blank."""
    value = _value(columns, name)
    if value is None:
        return ""
    if not isinstance(value, str):
        raise BadRowError(f"'{name}' is {kind(value)}. It must be a text, in quotes.")
    return value.strip() and value


def as_chat(shape: Shape, rows: Sequence[Row], name: str, system: str) -> Shape:
    """The shape with which rows go through the chat template; a DataError where they have no turns."""
    if isinstance(shape, (Chats, Pair)):
        return shape
    if isinstance(shape, Completion):
        return pair_shape(COMPLETION, _columns(rows), system)
    raise DataError(
        f"{name}: the rows are plain texts, which have no turns for a chat template. Choose auto or text."
    )


def as_text(shape: Shape, rows: Sequence[Row], name: str) -> Shape:
    """The shape with which rows are taken as they are; a DataError where they have no one text."""
    if isinstance(shape, (Plain, Completion)):
        return shape
    text = next((c for c in TEXT_COLUMNS if c in _columns(rows)), "")
    if text:
        return Plain(_columns(rows)[text], f"texts in '{text}', as they are")
    raise DataError(
        f"{name}: the rows have no column of texts ({', '.join(TEXT_COLUMNS)}). Choose auto or a format."
    )
