"""Conversations out of the data exports of ChatGPT and Claude: each becomes a row of messages.

    ChatGPT   mapping: {id: {parent, message: {author: {role}, content: {parts}}}}, current_node: the last one's id
    Claude    chat_messages: [{sender, content: [{type, text}]}]

What was said stays; what else there is (system messages, tools, thoughts, pictures) is left out, and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import islice
from typing import Any, NamedTuple

from .json_rows import LIST_COLUMN, Row, Table, export_column, kind

FIRST_ROWS = 20
CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201|【[^【】]*†[^【】]*】")
SENDERS = {"human": "user", "assistant": "assistant"}
SPOKEN = ("user", "assistant")
BETWEEN = "\n\n"  # two messages of the same speaker, once what stood between them is left out

SYSTEM, TOOLS, EMPTY, PARTS = "system messages", "messages of tools", "empty messages", "parts that are no text"
THOUGHTS, CITATIONS, ATTACHED = "thoughts", "citation marks", "attachments"


class BrokenError(ValueError):
    """What is wrong with a conversation, as a sentence that begins with what it names."""


class Said(NamedTuple):
    role: str
    text: str


Reader = Callable[[Mapping[str, Any], "Counter[str]"], Iterator[Said]]


def unpacked(table: Table) -> Table:
    """A table of conversations as rows of messages; any other one as it is."""
    first = islice((row.columns for row in table.rows() if not row.problem), FIRST_ROWS)
    column = next(filter(None, map(export_column, first)), "")
    if not column:
        return table
    what, read = _EXPORTS[column]

    def rows() -> Iterator[Row]:
        return (_row(row, column, read) for row in table.rows())

    return replace(table, unit="conversation", rows=rows, what=what)


def _row(row: Row, column: str, read: Reader) -> Row:
    if row.problem:
        return row
    left_out: Counter[str] = Counter()
    try:
        if column not in row.columns:
            raise BrokenError(f"'{column}' is missing: it is no conversation as the others are.")
        said = _joined(_clean(read(row.columns, left_out), left_out))
    except BrokenError as error:
        return Row(row.number, {}, str(error))
    messages = [{"role": each.role, "content": each.text} for each in said]
    replies = any(each.role == "assistant" for each in said)
    return Row(row.number, {LIST_COLUMN: messages}, left_out=left_out, without_reply=not replies)


def _clean(said: Iterator[Said], left_out: Counter[str]) -> Iterator[Said]:
    """Without citation marks, which only the program that made them could show, and without empty messages."""
    for role, text in said:
        bare, marks = CITATION.subn("", text)
        left_out[CITATIONS] += marks
        if bare.strip():
            yield Said(role, bare)
        else:
            left_out[EMPTY] += 1


def _joined(said: Iterator[Said]) -> list[Said]:
    """The turns: what one says twice in a row is one of them."""
    turns: list[Said] = []
    for each in said:
        if turns and turns[-1].role == each.role:
            turns[-1] = Said(each.role, turns[-1].text + BETWEEN + each.text)
        else:
            turns.append(each)
    return turns


def _of_chatgpt(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Said]:
    """What was said on the branch that was the last one looked at."""
    nodes = columns["mapping"]
    if not isinstance(nodes, dict):
        raise BrokenError(f"'mapping' is {kind(nodes)}. It must be an object of messages.")
    for number in reversed(_branch(nodes, columns.get("current_node"))):
        message = nodes[number].get("message")
        if message is not None:
            yield from _message(number, message, left_out)


def _branch(nodes: Mapping[str, Any], last: Any) -> list[str]:
    """From the last message back to the first."""
    number, branch = _last(nodes, last) if nodes else None, dict[str, None]()
    while number is not None:
        if not isinstance(number, str) or number not in nodes:
            child = f"'{next(reversed(branch))}' comes after" if branch else "'current_node' is"
            raise BrokenError(f"{child} {number!r}, which 'mapping' does not hold.")
        if number in branch:
            raise BrokenError(f"'{number}' comes after itself: its parents go round in a circle.")
        node = nodes[number]
        if not isinstance(node, dict):
            raise BrokenError(f"'{number}' in 'mapping' is {kind(node)}. It must be an object with a message.")
        branch[number] = None
        number = node.get("parent")
    return list(branch)


def _last(nodes: Mapping[str, Any], last: Any) -> Any:
    if last is not None:
        return last
    parents = {node.get("parent") for node in nodes.values() if isinstance(node, dict)}
    ends = [number for number in nodes if number not in parents]
    if len(ends) != 1:
        raise BrokenError(f"'current_node' is missing, and {len(ends)} messages could be the last one.")
    return ends[0]


def _message(number: str, message: Any, left_out: Counter[str]) -> Iterator[Said]:
    author = message.get("author") if isinstance(message, dict) else None
    role = author.get("role") if isinstance(author, dict) else None
    if not isinstance(role, str):
        raise BrokenError(f"'{number}' has no role under 'author' in its message.")
    if role not in SPOKEN or _is_hidden(message):
        left_out[TOOLS if role == "tool" else SYSTEM] += 1
        return
    content = message.get("content")
    if not isinstance(content, dict):
        raise BrokenError(f"'{number}' has {kind(content)} for its content. It must be an object with parts.")
    if message.get("recipient", "all") not in ("all", None):
        left_out[TOOLS] += 1
    elif "parts" not in content:  # thoughts, what somebody told of himself, code that is run
        left_out[THOUGHTS if role == "assistant" else SYSTEM] += 1
    elif not isinstance(content["parts"], list):
        raise BrokenError(f"'{number}' has {kind(content['parts'])} for its parts. They must be a list.")
    else:
        yield Said(role, _text(content["parts"], left_out))


def _is_hidden(message: Mapping[str, Any]) -> bool:
    """Whether nobody saw it: instructions of one's own, a context that was put in."""
    metadata = message.get("metadata")
    return isinstance(metadata, dict) and metadata.get("is_visually_hidden_from_conversation") is True


def _text(parts: Sequence[Any], left_out: Counter[str]) -> str:
    """The texts among some parts, and what was spoken; the rest is counted."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    found = [text for text in texts if isinstance(text, str)]
    left_out[PARTS] += len(texts) - len(found)
    return "".join(found)


def _of_claude(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[Said]:
    messages = columns["chat_messages"]
    if not isinstance(messages, list):
        raise BrokenError(f"'chat_messages' is {kind(messages)}. It must be a list of messages.")
    for number, message in enumerate(messages, start=1):
        if not isinstance(message, dict):
            raise BrokenError(
                f"message {number} is {kind(message)}. It must be an object with a sender and a text."
            )
        sender = message.get("sender")
        if sender not in SENDERS:
            raise BrokenError(f"message {number} has the sender {sender!r}. It must be human or assistant.")
        for attached in (message.get("attachments"), message.get("files")):
            left_out[ATTACHED] += len(attached) if isinstance(attached, list) else 0
        yield Said(SENDERS[sender], _said(number, message, left_out))


def _said(number: int, message: Mapping[str, Any], left_out: Counter[str]) -> str:
    """A message's parts that are texts; where it has none, the text that it is shown as."""
    content, text = message.get("content"), message.get("text")
    if isinstance(content, list) and content:
        kinds = [part.get("type", "text") if isinstance(part, dict) else "" for part in content]
        left_out[THOUGHTS] += kinds.count("thinking")
        left_out[TOOLS] += sum(each in ("tool_use", "tool_result") for each in kinds)
        silent = ("thinking", "tool_use", "tool_result")
        return _text([part for part, each in zip(content, kinds, strict=True) if each not in silent], left_out)
    if not isinstance(text, str):
        raise BrokenError(f"message {number} has {kind(text)} for its text.")
    return text


_EXPORTS: Mapping[str, tuple[str, Reader]] = {
    "mapping": ("a data export of ChatGPT", _of_chatgpt),
    "chat_messages": ("a data export of Claude", _of_claude),
}
