"""Row schemas: what the columns of a row mean (a chat, a filled prompt format or a text), by their names."""

from __future__ import annotations

import ast
import json
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from functools import partial
from itertools import pairwise
from typing import Any, Literal, NamedTuple

from ...core.errors import DataError
from ..readers import Row, describe_value, find_pair, json_rows

# The names of roles in ShareGPT, OpenAI's and other datasets, and those of chat templates.
ROLES = {
    **dict.fromkeys(("human", "user", "prompter", "customer"), "user"),
    **dict.fromkeys(("gpt", "assistant", "model", "bot", "chatgpt", "bard", "bing", "ai", "agent"), "assistant"),
    **dict.fromkeys(("system", "developer"), "system"),
    **dict.fromkeys(("tool", "function", "observation", "function_response", "ipython"), "tool"),
}
# The syntax tree of a Python literal takes hundreds of times the memory of its text.
MAX_LITERAL_CHARS = 500_000
SERIALIZED_LIST = re.compile(r"\s*\[\s*\{")
# Fields of a message that are read here; the others go to the template as they are.
READ_FIELDS = frozenset({"train", "weight", "from", "value", "role", "content"})


class BadRowError(ValueError):
    """A row that cannot be learned; the message ends a sentence that begins with the row's position."""


class Message(NamedTuple):
    """One message of a chat, as chat templates take it; `learned` is set where the row itself decides on it."""

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
    """A row that a chat template renders."""

    messages: tuple[Message, ...]
    tools: Sequence[Any] = ()

    @property
    def later_questions(self) -> list[int]:
        """The numbers of the messages with which an exchange begins, without the first one."""
        roles = [message.role for message in self.messages]
        last_reply = max((n for n, role in enumerate(roles) if role == "assistant"), default=0)
        asked = roles.index("user") if "user" in roles else 0
        return [n for n in range(asked + 1, last_reply) if roles[n - 1 : n + 1] == ["assistant", "user"]]

    def part(self, start: int, end: int | None = None) -> Chat:
        """Some of the messages, after the system message and with the tools."""
        system = self.messages[:1] if self.messages[0].role == "system" else ()
        return Chat((*system, *self.messages[max(start, len(system)) : end]), self.tools)

    def exchanges(self) -> list[Chat]:
        """Split into a chat for each question, the first with a greeting."""
        return [self.part(*bounds) for bounds in pairwise([0, *self.later_questions, len(self.messages)])]


@dataclass(frozen=True)
class FixedText:
    """A row that is text already; `reply` is where its reply begins, None where it has none.

    `prompt_end` is where the text of the format before the reply begins, None where there is none.
    """

    text: str
    reply: int | None = None
    prompt_end: int | None = None


@dataclass(frozen=True)
class RowSchema:
    """Reads rows: from columns to a chat or a text."""

    kind: Literal["text", "completion", "answer", "chat", "format"]
    reason: str  # what the rows are, and by which columns that was detected; for users
    columns: tuple[str, ...]  # that hold its texts, where it names them
    read: Callable[[Mapping[str, Any]], Chat | FixedText]  # raises BadRowError where a row can't be read
    has_replies: bool = True
    takes_system: bool = True  # whether its texts have a place for a system message


def decisive_rows(rows: Sequence[Row], names: Mapping[str, str]) -> Sequence[Row]:
    """The rows with the columns by which their schema is found.

    These are the ones that the user named, where they have a schema by themselves.
    """
    named = [row._replace(columns={key: row.columns[key] for key in names if key in row.columns}) for row in rows]
    with suppress(DataError):
        if names and detect_schema(named, "", ""):
            return named
    return rows


def detect_schema(rows: Sequence[Row], name: str, system: str, data_format: str = "auto") -> RowSchema:
    """Detect the schema by the columns of the first rows; raises DataError where none fits.

    With the format 'chat' a chat template formats them, and with 'text' they stay as they are.
    """
    columns = {str(column).strip().lower(): str(column) for row in rows for column in row.columns}
    schema = _detect(rows, name, system, columns)
    if data_format == "chat" and schema.kind == "completion":
        return _answer_schema((schema.columns[0], schema.columns[1]), columns, system)
    if data_format == "chat" and schema.kind == "text":
        reason = "the rows are plain text, but a chat template needs messages"
        raise DataError(f"{name}: {reason}. Set Data format to auto or text.")
    if data_format == "text" and schema.kind not in ("text", "completion"):
        text = next((columns[column] for column in json_rows.TEXT_COLUMNS if column in columns), "")
        if text:
            return _text_schema(text, f"texts in '{text}', unchanged")
        known = ", ".join(json_rows.TEXT_COLUMNS)
        raise DataError(
            f"{name}: the rows have no text column ({known}). Set Data format to auto or a prompt format."
        )
    return schema


def _detect(rows: Sequence[Row], name: str, system: str, columns: Mapping[str, str]) -> RowSchema:
    values = {column: [_value(row.columns, column) for row in rows] for column in columns}
    lists = {column for column in columns if any(isinstance(value, (list, tuple)) for value in values[column])}
    if schema := _chosen_chat_schema(values, system):
        return schema
    # Chats before pairs and pairs before texts: rows of chats often have a column such as 'prompt' or 'text', too.
    for column in json_rows.CHAT_COLUMNS:
        if column in lists:
            return _chat_schema((column,), system, f"chats, because the rows have the column '{column}'")
        if any(isinstance(parse_list(value), list) for value in values.get(column, ())):
            reason = f"chats, because the rows have lists of messages as text in the column '{column}'"
            return _chat_schema((column,), system, reason)
    for names in json_rows.COMPLETION_PAIRS:
        if set(names) <= columns.keys():
            listed = f"{names[0]!r} and {names[1]!r}"
            if names[0] in lists:
                return _chat_schema(names, system, f"chats in {listed}")
            reason = f"prompts and completions in {listed}, joined without changes"
            return RowSchema("completion", reason, names, partial(_read_completion, *names), takes_system=False)
    pair = find_pair(columns)
    if pair:
        return _answer_schema(pair, columns, system)
    text = next((column for column in json_rows.TEXT_COLUMNS if column in columns), "")
    if not text:  # the only column that holds texts, ids aside
        texts = {str(key) for row in rows for key, value in row.columns.items() if isinstance(value, str)}
        texts = {column for column in texts if column.strip().lower() not in json_rows.ID_COLUMNS}
        text = texts.pop() if len(texts) == 1 else ""
    if text:
        return _text_schema(text, f"texts, because the rows have the column '{text}' and no other known columns")
    if not columns:
        example = '{"instruction": ..., "output": ...}'
        raise DataError(f"{name}: no row has any columns. Each row must be a JSON object such as {example}.")
    existing = ", ".join([column for key, column in columns.items() if key not in json_rows.ID_COLUMNS][:12])
    have = f"have the columns {existing}, and none of them is recognized" if existing else "have only ID columns"
    # No example with these names: copied as it is, it might make the wrong column the learned one.
    raise DataError(
        f"{name}: the rows {have}. Rename the columns to 'instruction' and 'output', or rename one column to "
        "'messages' or 'text'. You can also enter your own names under Column names, as in instruction=QUESTIONS "
        "output=ANSWERS or text=TEXTS (put names with spaces in double quotes), or choose a prompt format that "
        "uses your column names."
    )


def _text_schema(column: str, reason: str) -> RowSchema:
    return RowSchema("text", reason, (column,), lambda row: FixedText(_required_text(row, column)), False, False)


def _read_completion(prompt: str, completion: str, row: Mapping[str, Any]) -> FixedText:
    """Prompt and completion, joined as they are."""
    text = _required_text(row, prompt)
    return FixedText(text + _required_text(row, completion), len(text))


def _answer_schema(pair: tuple[str, str], columns: Mapping[str, str], system: str) -> RowSchema:
    """Question and answer as a chat of two messages; a third column may have additional input."""
    question, answer, own_system = columns[pair[0]], columns[pair[1]], columns.get("system", "")
    more = next(
        (columns[c] for c in json_rows.CONTEXT_COLUMNS if c in columns and columns[c] not in (question, answer)),
        "",
    )
    listed = f"'{question}' and '{answer}'" if not more else f"'{question}', '{more}' and '{answer}'"
    reason = f"questions and answers, because the rows have the columns {listed}"

    def read(row: Mapping[str, Any]) -> Chat:
        asked, answered = _required_text(row, question), _required_text(row, answer)
        if more and (added := _optional_text(row, more)):
            asked = f"{asked}\n\n{added}"
        lead = (_optional_text(row, own_system) if own_system else "") or system
        turns = [("system", lead)] * bool(lead.strip()) + [("user", asked), ("assistant", answered)]
        return Chat(tuple(Message({"role": role, "content": content}) for role, content in turns))

    return RowSchema("answer", reason, (question, more, answer, own_system), read)


def _chat_schema(names: tuple[str, ...], system: str, reason: str) -> RowSchema:
    """Lists of messages, in one column or in the two columns prompt and completion."""

    def read(row: Mapping[str, Any]) -> Chat:
        messages = [message for name in names for message in read_messages(row, name)]
        if not any(message.role == "assistant" for message in messages):
            raise BadRowError("has no message from the assistant (role 'assistant', or 'gpt' under 'from').")
        own = _value(row, "system")
        lead = own if isinstance(own, str) and own.strip() else system
        if messages[0].role != "system" and lead.strip():
            messages.insert(0, Message({"role": "system", "content": lead}))
        tools = parse_list(_value(row, "tools"))  # in Parquet usually as text
        return Chat(tuple(messages), tools if isinstance(tools, list) else ())

    return RowSchema("chat", reason, names, read)


def _chosen_chat_schema(values: Mapping[str, Sequence[Any]], system: str) -> RowSchema | None:
    """Chats that end in 'chosen': a whole chat, or the reply to one in another column; None where it has texts."""
    if json_rows.CHOSEN not in values:
        return None
    replies = map(parse_list, values[json_rows.CHOSEN])
    reply = next((value for value in replies if value and isinstance(value, (list, tuple, Mapping))), None)
    names = [name for name in (*json_rows.CHAT_COLUMNS, "prompt") if name in values]
    before = next((name for name in names if any(isinstance(value, (list, tuple)) for value in values[name])), "")
    if isinstance(reply, (list, tuple)):
        reply = reply[0]
    if isinstance(reply, Mapping):
        role = str(reply.get("role", reply.get("from"))).strip().lower()
        # Some tables repeat the prompt of a whole chat in a column of its own.
        before = (before or next(iter(names), "")) if ROLES.get(role) == "assistant" else ""
    elif not before:
        return None
    used = (before, json_rows.CHOSEN) if before else (json_rows.CHOSEN,)
    return _chat_schema(used, system, f"chats in {' and '.join(map(repr, used))}")


def _value(columns: Mapping[str, Any], name: str) -> Any:
    """Return a column's value; case of the name and spaces around it do not matter."""
    if name in columns:
        return columns[name]
    name = name.strip().lower()
    return next((value for key, value in columns.items() if str(key).strip().lower() == name), None)


def parse_list(value: Any) -> Any:
    """Parse a list of messages that is text, as in tables: JSON or a Python literal; other values stay."""
    if not isinstance(value, str) or not SERIALIZED_LIST.match(value):
        return value
    # JSON, or what Python prints for a list, which pandas writes into CSV files.
    for parse in (json.loads, ast.literal_eval):
        if parse is ast.literal_eval and len(value) > MAX_LITERAL_CHARS:
            continue
        with suppress(ValueError, SyntaxError, RecursionError, MemoryError):
            return parse(value.strip())
    return value


def read_messages(columns: Mapping[str, Any], name: str) -> Iterator[Message]:
    """Read the messages of a column, in OpenAI's format (role, content) or ShareGPT's (from, value)."""
    listed = _value(columns, name)
    if isinstance(listed, str) and name in (prompt for prompt, _ in json_rows.COMPLETION_PAIRS):
        listed = [{"role": "user", "content": listed}]
    if name in (*json_rows.CHAT_COLUMNS, json_rows.CHOSEN):
        listed = parse_list(listed)
    if name == json_rows.CHOSEN and isinstance(listed, (str, Mapping)):
        listed = [{"role": "assistant", "content": listed} if isinstance(listed, str) else listed]
    if listed is None:
        raise BadRowError(f"has no '{name}'.")
    if not isinstance(listed, (list, tuple)) or not listed:
        raise BadRowError(
            f"'{name}' is {'empty' if listed == [] else describe_value(listed)}. It must be a list of messages."
        )
    for number, value in enumerate(listed, start=1):
        if not isinstance(value, Mapping):
            found = describe_value(value)
            raise BadRowError(f"message {number} is {found}. Each message needs a role and content.")
        role, content = value.get("role", value.get("from")), value.get("content", value.get("value"))
        # Some datasets have a blank system message where they mean none.
        if str(role).strip().lower() == "system" and not str(content or "").strip():
            continue
        if not isinstance(role, str) or role.strip().lower() not in ROLES:
            found = "no role" if role is None else f"the role {role!r}"
            raise BadRowError(
                f"message {number} has {found}. "
                "Its role must be system, user, assistant or tool (or human or gpt)."
            )
        if isinstance(content, list):
            parts = [part.get("text") if isinstance(part, Mapping) else part for part in content]
            if not all(isinstance(part, str) for part in parts):
                raise BadRowError(f"message {number} contains more than text. Only text can be trained on.")
            content = "".join(map(str, parts))
        # A message that calls a tool may be without words.
        if content is None and value.get("tool_calls"):
            content = ""
        elif not isinstance(content, str):
            raise BadRowError(f"the content of message {number} is {describe_value(content)}. It must be text.")
        elif not content.strip() and not value.get("tool_calls"):
            raise BadRowError(f"message {number} is empty. Fill it in, or remove it.")
        # Whether the row itself says that a message is learned: as 'train' true or false, or as 'weight' 0 or 1.
        train, weight = value.get("train"), value.get("weight")
        learned: bool | None = None
        if isinstance(train, bool):
            learned = train
        elif isinstance(weight, (int, float)) and weight in (0, 1):
            learned = bool(weight)
        elif weight is not None or train is not None:
            given = " and ".join(
                f"{key} = {value[key]!r}" for key in ("train", "weight") if value.get(key) is not None
            )
            raise BadRowError(
                f"message {number} has {given}. Use true or false for 'train', and 1 or 0 for 'weight'."
            )
        # Everything else that a message has goes to the template, such as the name of a tool.
        others = {key: field for key, field in value.items() if key not in READ_FIELDS and field is not None}
        yield Message({"role": ROLES[role.strip().lower()], "content": content, **others}, learned)


def _required_text(columns: Mapping[str, Any], name: str) -> str:
    """Return the text of a column that must have one."""
    if _value(columns, name) is None:
        existing = ", ".join(map(str, columns)) or "none"
        raise BadRowError(
            f"'{name}' is null." if name in columns else f"has no '{name}'; its columns are: {existing}."
        )
    if text := _optional_text(columns, name):
        return text
    raise BadRowError(f"'{name}' is empty. Fill it in, or remove the row.")


def _optional_text(columns: Mapping[str, Any], name: str) -> str:
    """Return the text of a column that may be missing or blank."""
    value = _value(columns, name)
    if value is None or value != value:  # NaN, which pandas writes where a text is missing
        return ""
    if name.strip().lower() != "system" and (number := json_rows.number_text(value)):
        return number
    if not isinstance(value, str):
        raise BadRowError(f"'{name}' is {describe_value(value)}. It must be text in quotes.")
    return value.strip() and value
