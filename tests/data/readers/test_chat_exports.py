"""Exports of ChatGPT and Claude: messages become chats, the rest is counted, broken conversations are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers import Row
from training_pro.tests.data.readers.reading import read_table, write
from training_pro.tests.rowing import family, learned_text, prepare_rows


def node(parent: str | None, role: str = "", *parts: Any, **fields: Any) -> dict[str, Any]:
    """A message of a ChatGPT export; without a role, the empty root."""
    if not role:
        return {"parent": parent, "message": None, "children": []}
    content = fields.pop("content", {"content_type": "text", "parts": list(parts)})
    message = {"author": {"role": role}, "content": content, "recipient": "all", "metadata": {}, **fields}
    return {"parent": parent, "message": message, "children": []}


def chatgpt(last: str = "e", **nodes: Any) -> dict[str, Any]:
    """A conversation with an abandoned branch, a tool, a picture and thoughts."""
    mapping = {
        "r": node(None),
        "s": node("r", "system", ""),
        "h": node("s", "user", "I sail.", metadata={"is_visually_hidden_from_conversation": True}),
        "a": node("h", "user", {"content_type": "image_asset_pointer"}, "What is a bowline?"),
        "b": node("a", "assistant", "A given up answer."),
        "t": node("a", "assistant", content={"content_type": "thoughts", "thoughts": []}),
        "c": node("t", "assistant", "search('bowline')", recipient="web"),
        "u": node("c", "tool", "Results."),
        "d": node("u", "assistant", "A knot\ue200cite\ue202turn0\ue201 with a loop."),
        "e": node("d", "assistant", "It does not slip."),
        **nodes,
    }
    return {"title": "Knots", "mapping": mapping, "current_node": last}


def claude_conversation(*messages: Any) -> dict[str, Any]:
    return {"uuid": "1", "name": "Knots", "chat_messages": list(messages)}


def claude_message(sender: str, *parts: Any, **fields: Any) -> dict[str, Any]:
    return {"sender": sender, "text": "shown", "content": [*parts], "attachments": [], "files": [], **fields}


def text_part(content: str) -> dict[str, str]:
    return {"type": "text", "text": content}


KNOTS = [{"role": "user", "content": "What is a bowline?"}]
BOTH = [*KNOTS, {"role": "assistant", "content": "A knot with a loop.\n\nIt does not slip."}]


def read_rows(tmp_path, content: Any) -> list[Row]:
    return read_table(write(tmp_path / "conversations.json", json.dumps(content)))[1]


def left_out_counts(row: Row) -> dict[str, int]:
    return {kind: count for kind, count in row.left_out.items() if count}


def test_the_branch_that_ends_in_the_current_node(tmp_path):
    first, second = read_rows(tmp_path, [chatgpt(), chatgpt("b")])
    assert first.columns == {"messages": BOTH} and not first.without_reply
    assert left_out_counts(first) == {
        **{"system messages": 2, "thoughts": 1, "tool messages": 2},
        **{"citation marks": 1, "parts that are not text": 1},
    }
    assert second.columns["messages"][1]["content"] == "A given up answer."


def test_transcripts_are_text_and_empty_messages_are_left_out(tmp_path):
    part = {"content_type": "audio_transcription", "text": "Ahoy?"}
    nodes = {
        "a": node(None, "user", content={"content_type": "multimodal_text", "parts": [part]}),
        "e": node("a", "assistant", "  "),
        "f": node("e", "assistant", "Aye."),
    }
    for conversation in ({"mapping": nodes, "current_node": "f"}, {"title": "x", "mapping": nodes}):
        [row] = read_rows(tmp_path, [conversation])  # a single leaf needs no current node
        assert [m["content"] for m in row.columns["messages"]] == ["Ahoy?", "Aye."]
        assert left_out_counts(row) == {"empty messages": 1}


def test_claude(tmp_path):
    question = claude_message("human", text_part("What is a bowline?"), attachments=[{"extracted_content": "..."}])
    thought, tool_use = {"type": "thinking", "thinking": "Hm."}, {"type": "tool_use", "input": {}}
    parts = [thought, text_part("A knot with a loop."), tool_use, text_part("\n\nIt does not slip.")]
    answer = claude_message("assistant", *parts)
    [row] = read_rows(tmp_path, [claude_conversation(question, answer)])
    assert row.columns == {"messages": BOTH}
    assert left_out_counts(row) == {"attachments": 1, "thoughts": 1, "tool messages": 1}
    without_content = {"sender": "assistant", "text": "And it opens again."}
    [row] = read_rows(tmp_path, claude_conversation(question, answer, without_content))
    assert row.columns["messages"][1]["content"].endswith("slip.\n\nAnd it opens again.")


def test_one_conversation_on_each_line(tmp_path):
    lines = "\n".join(json.dumps(chatgpt()) for _ in range(3))
    table, rows = read_table(write(tmp_path / "talks.jsonl", lines))
    assert [row.columns["messages"] for row in rows] == [BOTH] * 3 and table.unit == "conversation"


def test_other_rows_are_left_as_they_are(tmp_path):
    rows = [{"mapping": {"red": "0"}, "text": "one"}, {"mapping": {"red": "1"}, "text": "two"}]
    assert [row.columns for row in read_rows(tmp_path, rows)] == rows


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"mapping": [], "current_node": "e"}, "'mapping' is a list. It must be a JSON object"),
        (chatgpt("z"), "'current_node' is 'z', which is not in 'mapping'."),
        (chatgpt(d=node("y", "assistant", "A")), "'d' comes after 'y', which is not in 'mapping'."),
        (chatgpt(a=node("e", "user", "A")), "'e' is its own ancestor: its chain of parents is circular."),
        (chatgpt(d="A knot"), "'d' in 'mapping' is a string. It must be a JSON object with a 'message'."),
        (chatgpt(d={"parent": "a", "message": {}}), "message 'd' has no role under 'author'."),
        (chatgpt(d={"parent": ["a"], "message": "A"}), ""),
        (chatgpt(d=node("a", "assistant", content="A")), "the content of message 'd' is a string."),
        (chatgpt(d=node("a", "assistant", content={"parts": "A"})), "'parts' in 'd' is a string."),
        ({"mapping": chatgpt()["mapping"]}, "'current_node' is missing, and 2 messages"),
        ({"title": "Knots"}, "'mapping' is missing, so this is not a conversation like the others."),
    ],
)
def test_broken_conversations_are_named(tmp_path, broken, problem):
    first, second = read_rows(tmp_path, [chatgpt(), broken])
    assert not first.problem and second.problem.startswith(problem) and second.problem


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hello", "message 2 is a string. It must be a JSON object with a sender and text."),
        ({"sender": "nobody", "text": "x"}, "message 2 has the sender 'nobody'."),
        ({"sender": ["human"], "text": "x"}, "message 2 has "),
        ({"sender": "human"}, "message 2 has no text: its 'text' is null."),
    ],
)
def test_broken_messages_of_claude_are_named(tmp_path, message, problem):
    [row] = read_rows(tmp_path, [claude_conversation(claude_message("human", text_part("Hi")), message)])
    assert row.problem.startswith(problem)


def test_many_citation_marks_and_messages_of_one_role_are_read(tmp_path):
    messages = [{"sender": "human", "text": f"{number}" * 20} for number in range(20_000)]
    marks = {"sender": "assistant", "text": "【" + "†" * 100_000}
    [row] = read_rows(tmp_path, [{"chat_messages": [*messages, marks]}])
    assert len(row.columns["messages"]) == 2


def test_check_says_what_was_read_and_what_was_left_out(tmp_path):
    chatml, files = family("ChatML"), {"conversations.json": [chatgpt(), chatgpt("a"), chatgpt("b")]}
    data = prepare_rows(tmp_path / "a", chatml, files)
    [source] = data.report.sources
    assert source.what.startswith("rows (a data export from ChatGPT): chats, because")
    assert (source.rows.rows, source.rows.without_reply, source.examples) == (3, 1, 2)
    assert (
        "Dropped from conversations: citation marks (1), parts that are not text (3), system messages (6), "
        "thoughts (1), tool messages (2)."
    ) in source.notes
    assert learned_text(chatml, data.examples[0]) == "A knot with a loop.\n\nIt does not slip.<|im_end|>"
    assert not any("is the same as" in advice for advice in data.report.advice)
    data = prepare_rows(tmp_path / "b", chatml, {"conversations.json": [chatgpt(), chatgpt("z")]})
    assert data.report.problems == (
        "conversations.json, conversation 2: 'current_node' is 'z', which is not in 'mapping'.",
    )
    with pytest.raises(DataError, match="no conversation has a reply from the assistant"):
        prepare_rows(tmp_path / "c", chatml, {"conversations.json": [claude_conversation()] * 2})
