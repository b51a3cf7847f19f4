"""Exports of ChatGPT and Claude: messages become chats, the rest is counted, broken conversations are named."""

from __future__ import annotations

import json
from typing import Any

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers.chat_exports import unpack_export
from training_pro.data.readers.json_rows import Row, read_json, read_jsonl
from training_pro.tests import rowing
from training_pro.tests.rowing import family, learned_text


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
    path = tmp_path / "conversations.json"
    path.write_text(json.dumps(content), encoding="utf-8")
    return list(unpack_export(read_json(path, path.name)).rows())


def left_out_counts(row: Row) -> dict[str, int]:
    return {kind: count for kind, count in row.left_out.items() if count}


def test_the_branch_that_ends_in_the_current_node(tmp_path):
    [row] = read_rows(tmp_path, [chatgpt()])
    assert row.columns == {"messages": BOTH} and not row.without_reply
    assert left_out_counts(row) == {
        "system messages": 2,
        "thoughts": 1,
        "tool messages": 2,
        "citation marks": 1,
        "parts that are not text": 1,
    }
    [row] = read_rows(tmp_path, [chatgpt("b")])
    assert row.columns["messages"][1]["content"] == "A given up answer."


def test_transcripts_are_text_and_empty_messages_are_left_out(tmp_path):
    spoken = {
        "content_type": "multimodal_text",
        "parts": [{"content_type": "audio_transcription", "text": "Ahoy?"}],
    }
    nodes = {
        "a": node(None, "user", content=spoken),
        "e": node("a", "assistant", "  "),
        "f": node("e", "assistant", "Aye."),
    }
    [row] = read_rows(tmp_path, {"mapping": nodes, "current_node": "f"})
    assert [m["content"] for m in row.columns["messages"]] == ["Ahoy?", "Aye."]
    assert left_out_counts(row) == {"empty messages": 1}


def test_claude(tmp_path):
    question = claude_message("human", text_part("What is a bowline?"), attachments=[{"extracted_content": "..."}])
    thought, tool_use = {"type": "thinking", "thinking": "Hm."}, {"type": "tool_use", "input": {}}
    answer = claude_message(
        "assistant", thought, text_part("A knot with a loop."), tool_use, text_part("\n\nIt does not slip.")
    )
    without_content = {"sender": "assistant", "text": "And it opens again."}
    [row] = read_rows(tmp_path, [claude_conversation(question, answer)])
    assert row.columns == {"messages": BOTH}
    assert left_out_counts(row) == {"attachments": 1, "thoughts": 1, "tool messages": 1}
    [row] = read_rows(tmp_path, claude_conversation(question, answer, without_content))
    assert row.columns["messages"][1]["content"].endswith("slip.\n\nAnd it opens again.")


def test_one_conversation_on_each_line(tmp_path):
    path = tmp_path / "talks.jsonl"
    path.write_text("\n".join(json.dumps(chatgpt()) for _ in range(3)), encoding="utf-8")
    table = unpack_export(read_jsonl(path, path.name))
    assert [row.columns["messages"] for row in table.rows()] == [BOTH] * 3
    assert table.unit == "conversation"


def test_other_rows_are_left_as_they_are(tmp_path):
    rows = [{"mapping": {"red": "0"}, "text": "one"}, {"mapping": {"red": "1"}, "text": "two"}]
    assert [row.columns for row in read_rows(tmp_path, rows)] == rows


@pytest.mark.parametrize(
    ("broken", "problem"),
    [
        ({"mapping": [], "current_node": "e"}, "'mapping' is a list. It must be a JSON object that "
"contains messages."),
        (chatgpt("z"), "'current_node' is 'z', which is not in 'mapping'."),
        (chatgpt(d=node("y", "assistant", "A")), "'d' comes after 'y', which is not in 'mapping'."),
        (chatgpt(a=node("e", "user", "A")), "'e' is its own ancestor: its chain of parents is circular."),
        (chatgpt(d="A knot"), "'d' in 'mapping' is a string. It must be a JSON object with a 'message'."),
        (chatgpt(d={"parent": "a", "message": {}}), "message 'd' has no role under 'author'."),
        (chatgpt(d={"parent": "a", "message": "A"}), "message 'd' has no role under 'author'."),
        (chatgpt(d=node("a", "assistant", content="A")), "the content of message 'd' is a string."),
        (chatgpt(d=node("a", "assistant", content={"parts": "A"})), "'parts' in 'd' is a string."),
        ({k: v for k, v in chatgpt().items() if k != "current_node"}, "'current_node' is missing, and 2 messages"),
        ({"title": "Knots"}, "'mapping' is missing, so this is not a conversation like the others."),
    ],
)  # fmt: skip
def test_broken_conversations_are_named(tmp_path, broken, problem):
    first, second = read_rows(tmp_path, [chatgpt(), broken])
    assert not first.problem and second.problem.startswith(problem)


@pytest.mark.parametrize(
    ("message", "problem"),
    [
        ("hello", "message 2 is a string. It must be a JSON object with a sender and text."),
        (
            {"sender": "nobody", "text": "x"},
            "message 2 has the sender 'nobody'. The sender must be human or assistant.",
        ),
        ({"sender": "human"}, "message 2 has no text: its 'text' is null."),
    ],
)
def test_broken_messages_of_claude_are_named(tmp_path, message, problem):
    [row] = read_rows(tmp_path, [claude_conversation(claude_message("human", text_part("Hi")), message)])
    assert row.problem == problem


def test_a_single_leaf_needs_no_current_node(tmp_path):
    nodes = {"a": node(None, "user", "Who?"), "b": node("a", "assistant", "Nobody.")}
    [row] = read_rows(tmp_path, [{"title": "x", "mapping": nodes}])
    assert len(row.columns["messages"]) == 2


def test_check_says_what_was_read_and_what_was_left_out(tmp_path):
    chatml = family("ChatML")
    data = rowing.prepare_rows(
        tmp_path,
        chatml,
        {"conversations.json": [chatgpt(), chatgpt("a"), chatgpt("b")]},
    )
    [source] = data.report.sources
    assert source.what == "rows (a data export from ChatGPT): chats, because the rows have the column 'messages'"
    assert (source.rows.rows, source.rows.without_reply, source.examples) == (3, 1, 2)
    note = (
        "Dropped from conversations: citation marks (1), parts that are not text (3), system messages (6), "
        "thoughts (1), tool messages (2)."
    )
    assert note in source.notes
    assert learned_text(chatml, data.examples[0]) == "A knot with a loop.\n\nIt does not slip.<|im_end|>"
    assert not any("is the same as" in advice for advice in data.report.advice)


def test_an_export_without_any_reply_is_one_sentence(tmp_path):
    with pytest.raises(DataError, match="no conversation has a reply from the assistant"):
        rowing.prepare_rows(
            tmp_path, family("ChatML"), {"conversations.json": [claude_conversation(), claude_conversation()]}
        )


def test_broken_conversations_stop_check_by_their_place(tmp_path):
    data = rowing.prepare_rows(tmp_path, family("ChatML"), {"conversations.json": [chatgpt(), chatgpt("z")]})
    assert data.report.problems == (
        "conversations.json, conversation 2: 'current_node' is 'z', which is not in 'mapping'.",
    )
