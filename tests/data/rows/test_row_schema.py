"""Row schemas by the columns of rows, and the messages for rows that fit none."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.data.readers import Row
from training_pro.data.rows.row_schema import (
    BadRowError,
    Chat,
    FixedText,
    as_chat_schema,
    as_text_schema,
    detect_schema,
)

USER, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
TURNS = [("user", "q"), ("assistant", "a")]


def shape(*rows, system=""):
    return detect_schema([Row(n, columns) for n, columns in enumerate(rows, start=1)], "a.json", system)


def turns(row, **more):
    content = shape(row, **more).of(row)
    assert isinstance(content, Chat)
    return [(m.role, m.content) for m in content.messages]


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [USER, REPLY]}, "chats, because the rows have the column 'messages'"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "'conversations'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, REPLY]}, "'messages'"),
        (
            {"instruction": "q", "output": "a"},
            "questions and answers, because the rows have the columns 'instruction' and 'output'",
        ),
        ({"instruction": "q", "input": " ", "output": "a"}, "'instruction', 'input' and 'output'"),
        ({"input": "q", "output": "a"}, "'input' and 'output'"),
        ({"Question": "q", "Answer": "a", "id": 5}, "'Question' and 'Answer'"),
        ({"prompt": "q", "response": "a"}, "'prompt' and 'response'"),
        ({"prompt": [USER], "completion": [REPLY]}, "chats in 'prompt' and 'completion'"),
        ({"messages": json.dumps([USER, REPLY])}, "lists of messages as text in the column 'messages'"),
        ({"conversations": f"\n{[USER, REPLY]}"}, "lists of messages as text in the column 'conversations'"),
    ],
)
def test_rows_that_are_read_as_chats(row, reason):
    assert turns(row) == TURNS
    assert reason in shape(row).reason
    assert shape(row).has_replies


def test_a_number_that_is_none_is_a_missing_text():
    row = {"instruction": "q", "input": float("nan"), "output": "a"}
    assert turns(row) == TURNS
    with pytest.raises(BadRowError, match="'output' is empty"):
        shape(row).of({**row, "output": float("nan")})


def test_column_names_may_differ_in_case_and_spaces():
    rows = {"instruction": "q", " OUTPUT": "a"}, {"Instruction ": "r", "Output ": "b"}
    chats = [shape(*rows).of(row) for row in rows]
    assert [[m.content for m in one_chat.messages] for one_chat in chats] == [["q", "a"], ["r", "b"]]


def test_a_text_that_is_not_a_list_stays_a_text():
    for text in ("[INST] Hi", "[{] is no JSON", "[1, 2]"):
        assert shape({"chat": text}).of({"chat": text}) == FixedText(text)


def test_a_broken_serialized_list_is_a_bad_row():
    good, bad = {"messages": json.dumps([USER, REPLY])}, {"messages": json.dumps([USER, REPLY])[:-2]}
    with pytest.raises(BadRowError, match="'messages' is a string"):
        shape(good, bad).of(bad)


@pytest.mark.parametrize("blank", ["", " \n", None])
def test_a_blank_system_message_is_ignored(blank):
    row = {"messages": [{"role": "system", "content": blank}, USER, REPLY]}
    assert turns(row) == TURNS
    assert turns(row, system="given") == [("system", "given"), *TURNS]


def test_an_input_follows_its_instruction():
    assert turns({"instruction": "q", "input": "more", "output": "a"})[0] == ("user", "q\n\nmore")


@pytest.mark.parametrize(("own", "system"), [("", "given"), ("own", "own")])
def test_a_system_message(own, system):
    row = {"instruction": "q", "output": "a", "system": own}
    assert turns(row, system="given") == [("system", system), *TURNS]
    row = {"messages": [*([{"role": "system", "content": own}] if own else []), USER, REPLY]}
    assert turns(row, system="given") == [("system", system), *TURNS]


def test_texts():
    assert shape({"text": "t"}).of({"text": "t"}) == FixedText("t")
    assert shape({"anything": "t", "id": 1}).of({"anything": "t"}) == FixedText("t")
    assert not shape({"text": "t"}).has_replies


def test_prompt_and_completion():
    row = {"prompt": "q ", "completion": "a"}
    assert shape(row).of(row) == FixedText("q a", 2)
    chat_row = as_chat_schema(shape(row), [Row(1, row)], "a.json", "").of(row)
    assert [m.content for m in chat_row.messages] == ["q ", "a"]


def test_unknown_columns_are_named():
    with pytest.raises(DataError, match=r"a\.json: the rows have the columns body_a, body_b, and none of them"):
        shape({"body_a": "x", "body_b": "y"})


def test_the_chosen_format_must_fit_the_rows():
    rows = [Row(1, {"text": "t"})]
    with pytest.raises(DataError, match="plain text, but a chat template needs messages"):
        as_chat_schema(shape({"text": "t"}), rows, "a.json", "")
    with pytest.raises(DataError, match="have no text column"):
        as_text_schema(
            shape({"instruction": "q", "output": "a"}), [Row(1, {"instruction": "q", "output": "a"})], "a.json"
        )
    row = {"instruction": "q", "output": "a", "text": "t"}
    assert as_text_schema(shape(row), [Row(1, row)], "a.json").of(row) == FixedText("t")


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"output": "a"}, "has no 'instruction'; its columns are: output."),
        ({"instruction": None, "output": "a"}, "'instruction' is null."),
        ({"instruction": 5, "output": "a"}, "'instruction' is a number (5). It must be text in quotes."),
        ({"instruction": "q", "output": ["a"]}, "'output' is a list. It must be text in quotes."),
        ({"instruction": "q", "output": True}, "'output' is true. It must be text in quotes."),
        ({"instruction": "q", "output": " \n"}, "'output' is empty. Fill it in, or remove the row."),
    ],
)
def test_bad_question_and_answer_rows(row, expected):
    with pytest.raises(BadRowError) as error:
        shape({"instruction": "q", "output": "a"}).of(row)
    assert str(error.value) == expected


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        (None, "has no 'messages'."),
        ([], "'messages' is empty. It must be a list of messages."),
        ("hi", "'messages' is a string. It must be a list of messages."),
        ([USER], "has no message from the assistant (role 'assistant', or 'gpt' under 'from')."),
        (["hi"], "message 1 is a string. Each message needs a role and content."),
        (
            [{"content": "q"}],
            "message 1 has no role. Its role must be system, user, assistant or tool (or human or gpt).",
        ),
        ([{"role": "wizard", "content": "q"}], "message 1 has the role 'wizard'. Its role must be"),
        ([USER, {"role": "assistant", "content": None}], "the content of message 2 is null. It must be text."),
        (
            [USER, {"role": "assistant", "content": 7}],
            "the content of message 2 is a number (7). It must be text.",
        ),
        ([USER, {"role": "assistant", "content": ""}], "message 2 is empty. Fill it in, or remove it."),
        ([{"role": "user", "content": [{"type": "image"}]}, REPLY], "message 1 contains more than text."),
        (
            [USER, {**REPLY, "weight": 0.5}],
            "message 2 has weight = 0.5. Use true or false for 'train', and 1 or 0 for 'weight'.",
        ),
        ([USER, {**REPLY, "train": "no"}], "message 2 has train = 'no'."),
    ],
)
def test_bad_chats(messages, expected):
    with pytest.raises(BadRowError) as error:
        shape({"messages": [USER, REPLY]}).of({"messages": messages})
    assert expected in str(error.value)
