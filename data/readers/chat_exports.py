"""Conversations in the data exports of ChatGPT and Claude: each becomes a row of messages.

    ChatGPT   mapping: {id: {parent, message: {author: {role}, content: {parts}}}}, current_node: the last one's id
    Claude    chat_messages: [{sender, content: [{type, text}]}]

All but the messages of user and assistant (tool calls, thoughts, pictures ...) is dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import Any

from .json_rows import MESSAGES_COLUMN, Row, Table, describe_value

# Only the program that made these marks can show them.
CITATION = re.compile("\ue200[^\ue200\ue201]*\ue201|【[^【】†]*†[^【】]*】")
SENDER_ROLES = {"human": "user", "assistant": "assistant"}
MESSAGE_SEPARATOR = "\n\n"  # between messages of the same role, once a message between them is dropped
SYSTEM_MESSAGES, TOOL_MESSAGES, THOUGHTS = "system messages", "tool messages", "thoughts"
TOOL_PARTS = ("tool_use", "tool_result")


class ConversationError(ValueError):
    """A malformed conversation; the message names the part that is wrong."""


def unpack_export(table: Table, column: str) -> Table:
    """A table of exported conversations, whose messages are in this column, as rows of messages."""
    description, read_messages = "a data export from Claude", _read_claude
    if column == "mapping":
        description, read_messages = "a data export from ChatGPT", _read_chatgpt

    def rows() -> Iterator[Row]:
        for row in table.rows():
            if row.problem:
                yield row
                continue
            left_out: Counter[str] = Counter()
            turns: list[dict[str, str]] = []
            try:
                if column not in row.columns:
                    missing = f"'{column}' is missing, so this is not a conversation like the others."
                    raise ConversationError(missing)
                for role, text in read_messages(row.columns, left_out):
                    cleaned, citations = CITATION.subn("", text)
                    left_out["citation marks"] += citations
                    if not cleaned.strip():
                        left_out["empty messages"] += 1
                    elif turns and turns[-1]["role"] == role:
                        turns[-1]["content"] += MESSAGE_SEPARATOR + cleaned
                    else:
                        turns.append({"role": role, "content": cleaned})
            except ConversationError as error:
                yield Row(row.number, {}, str(error))
                continue
            has_reply = any(turn["role"] == "assistant" for turn in turns)
            yield Row(row.number, {MESSAGES_COLUMN: turns}, left_out=left_out, without_reply=not has_reply)

    return replace(table, unit="conversation", rows=rows, what=description)


def _read_chatgpt(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The role and text of each message of the branch that was viewed last; what is dropped is counted."""
    nodes = expect(dict, columns["mapping"], "'mapping'")
    node_id, branch = columns.get("current_node") if nodes else None, dict[str, Any]()
    if node_id is None and nodes:
        named = (node.get("parent") for node in nodes.values() if isinstance(node, dict))
        parents = {parent for parent in named if isinstance(parent, str)}
        leaves = [each for each in nodes if each not in parents]
        if len(leaves) != 1:
            raise ConversationError(
                f"'current_node' is missing, and {len(leaves)} messages could be the last one."
            )
        node_id = leaves[0]
    # From the last message back to the first: each node names its parent.
    while node_id is not None:
        if not isinstance(node_id, str) or node_id not in nodes:
            child = f"'{next(reversed(branch))}' comes after" if branch else "'current_node' is"
            raise ConversationError(f"{child} {node_id!r}, which is not in 'mapping'.")
        if node_id in branch:
            raise ConversationError(f"'{node_id}' is its own ancestor: its chain of parents is circular.")
        node = expect(dict, nodes[node_id], f"'{node_id}' in 'mapping'")
        branch[node_id] = node.get("message")
        node_id = node.get("parent")
    for node_id, message in reversed(branch.items()):
        if message is None:
            continue
        author = message.get("author") if isinstance(message, dict) else None
        role = author.get("role") if isinstance(author, dict) else None
        if not isinstance(role, str):
            raise ConversationError(f"message '{node_id}' has no role under 'author'.")
        # The user never saw a hidden message, such as custom instructions or an added context.
        metadata = message.get("metadata")
        is_hidden = isinstance(metadata, dict) and metadata.get("is_visually_hidden_from_conversation") is True
        if role not in ("user", "assistant") or is_hidden:
            left_out[TOOL_MESSAGES if role == "tool" else SYSTEM_MESSAGES] += 1
            continue
        content = expect(dict, message.get("content"), f"the content of message '{node_id}'")
        if message.get("recipient", "all") not in ("all", None):
            left_out[TOOL_MESSAGES] += 1
        elif "parts" not in content:  # thoughts, a user's profile, code that is run
            left_out[THOUGHTS if role == "assistant" else SYSTEM_MESSAGES] += 1
        else:
            yield role, _join_parts(expect(list, content["parts"], f"'parts' in '{node_id}'"), left_out)


def _read_claude(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    messages = expect(list, columns["chat_messages"], "'chat_messages'")
    for number, message in enumerate(messages, start=1):
        sender = expect(dict, message, f"message {number}").get("sender")
        if not isinstance(sender, str) or sender not in SENDER_ROLES:
            raise ConversationError(
                f"message {number} has the sender {sender!r}. The sender must be human or assistant."
            )
        for attachments in (message.get("attachments"), message.get("files")):
            left_out["attachments"] += len(attachments) if isinstance(attachments, list) else 0
        content, text = message.get("content"), message.get("text")
        if isinstance(content, list) and content:
            kinds = [part.get("type", "text") if isinstance(part, dict) else "" for part in content]
            left_out[THOUGHTS] += kinds.count("thinking")
            left_out[TOOL_MESSAGES] += sum(map(kinds.count, TOOL_PARTS))
            parts = [p for p, kind in zip(content, kinds, strict=True) if kind not in ("thinking", *TOOL_PARTS)]
            text = _join_parts(parts, left_out)
        elif not isinstance(text, str):  # without parts, the text that is displayed for it
            raise ConversationError(f"message {number} has no text: its 'text' is {describe_value(text)}.")
        yield SENDER_ROLES[sender], text


def _join_parts(parts: Sequence[Any], left_out: Counter[str]) -> str:
    """The texts among the parts of a message, transcripts included; the rest is counted."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    strings = [text for text in texts if isinstance(text, str)]
    left_out["parts that are not text"] += len(texts) - len(strings)
    return "".join(strings)


def expect(kind: type[Any], value: Any, what: str) -> Any:
    """The value, if it is of this kind."""
    if not isinstance(value, kind):
        must = "a list" if kind is list else "a JSON object"
        raise ConversationError(f"{what} is {describe_value(value)}. It must be {must}.")
    return value
