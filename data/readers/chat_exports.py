"""Conversations in the data exports of ChatGPT and Claude: each becomes a row of messages.

    ChatGPT   mapping: {id: {parent, message: {author: {role}, content: {parts}}}}, current_node: the last one's id
    Claude    chat_messages: [{sender, content: [{type, text}]}]

All but the messages of user and assistant (tool calls, thoughts, pictures ...) is dropped and counted.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator, Mapping, Sequence
from itertools import groupby
from pathlib import Path
from typing import Any

from ...settings.definitions import TrainingSettings
from .chat_logs import SYSTEM_MESSAGES, THOUGHTS, TOOL_MESSAGES, ConversationError, Turn, as_list, expect, to_table
from .json_rows import Row, Table, describe_value

# What ChatGPT shows as a name, ["people", "Ada Lovelace", ...], and as the text of a link.
SHOWN = re.compile(
    '\ue200(?:entity\ue202\\["[^"]*", *"([^"\\\\]*)"|url\ue202([^\ue200-\ue202]*))[^\ue200\ue201]*\ue201'
)
# Only the program that made these marks can show them.
CITATION = re.compile(" ?(?:\ue200[^\ue200\ue201]*\ue201|【[^【】†]*†[^【】]*】)")
SENDER_ROLES = {"human": "user", "assistant": "assistant"}
TOOL_PARTS = ("tool_use", "tool_result")


def unpack_export(program: str, table: Table, _: Path, settings: TrainingSettings) -> Table:
    """The conversations of an export, in which successive messages of the same role are one."""

    def read(row: Row, left_out: Counter[str]) -> Iterator[list[Turn]]:
        turns = list[dict[str, Any]]()
        for role, text in READ_MESSAGES[program](row.columns, left_out):
            cleaned, citations = CITATION.subn("", SHOWN.sub(r"\1\2", text))
            left_out["citation marks"] += citations
            if not cleaned.strip():
                left_out["empty messages"] += 1
            elif turns and turns[-1]["role"] == role:
                turns[-1]["content"] += f"\n\n{cleaned}"
            else:
                turns.append({"role": role, "content": cleaned})
        yield list(map(Turn, turns))

    return to_table(table, f"a data export from {program}", read, settings)


def _read_chatgpt(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    """The role and text of each message of the branch that was viewed last; what is dropped is counted."""
    nodes = expect(dict, columns.get("mapping"), "'mapping'")
    node_id, branch = columns.get("current_node"), dict[str, Any]()
    if nodes and node_id is None:
        raise ConversationError("'current_node' is missing, so its last message is not known.")
    # From the last message back to the first: each node names its parent.
    while node_id is not None:
        if not isinstance(node_id, str) or node_id not in nodes or node_id in branch:
            raise ConversationError(f"message {node_id!r} is not in 'mapping', or is its own ancestor.")
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
            yield role, join_parts(expect(list, content["parts"], f"'parts' in '{node_id}'"), left_out)


def _read_claude(columns: Mapping[str, Any], left_out: Counter[str]) -> Iterator[tuple[str, str]]:
    messages = expect(list, columns.get("chat_messages"), "'chat_messages'")
    for number, message in enumerate(messages, start=1):
        sender = expect(dict, message, f"message {number}").get("sender")
        if not isinstance(sender, str) or sender not in SENDER_ROLES:
            raise ConversationError(
                f"message {number} has the sender {sender!r}. The sender must be human or assistant."
            )
        left_out["attachments"] += len(as_list(message.get("attachments"))) + len(as_list(message.get("files")))
        content, text = message.get("content"), message.get("text")
        if isinstance(content, list) and content:
            kinds = [part.get("type", "text") if isinstance(part, dict) else "" for part in content]
            left_out[THOUGHTS] += kinds.count("thinking")
            left_out[TOOL_MESSAGES] += sum(map(kinds.count, TOOL_PARTS))
            # A text with sources has several parts. What Claude says before and after a search are two texts.
            runs = groupby(zip(kinds, content, strict=True), lambda part: part[0] in ("thinking", *TOOL_PARTS))
            said = [join_parts([part for _, part in run], left_out) for is_dropped, run in runs if not is_dropped]
            text = "\n\n".join(filter(None, map(str.strip, said)))
        elif not isinstance(text, str):  # without parts, the text that is displayed for it
            raise ConversationError(f"message {number} has no text: its 'text' is {describe_value(text)}.")
        yield SENDER_ROLES[sender], text


READ_MESSAGES = {"ChatGPT": _read_chatgpt, "Claude": _read_claude}


def join_parts(parts: Sequence[Any], left_out: Counter[str]) -> str:
    """The texts among the parts of a message, transcripts included; the rest is counted."""
    texts = [part.get("text") if isinstance(part, dict) else part for part in parts]
    strings = [text for text in texts if isinstance(text, str)]
    left_out["parts that are not text"] += len(texts) - len(strings)
    return "".join(strings)
