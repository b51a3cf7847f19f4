"""How rows are read by their columns, what is wrong with rows, and what Check says of their words."""

from __future__ import annotations

import json
import random

import pytest
from training_pro.core.errors import DataError
from training_pro.tests.rowing import chat, family, prepare_rows

CHATML = family("ChatML")
USER, REPLY = {"role": "user", "content": "q"}, {"role": "assistant", "content": "a"}
SYSTEM = {"role": "system", "content": "own"}
PAIR = {"instruction": "q", "output": "a"}
OWN, GIVEN = (f"<|im_start|>system\n{name}<|im_end|>\n" for name in ("own", "given"))
TURNS = "<|im_start|>user\nq<|im_end|>\n<|im_start|>assistant\na<|im_end|>\n"


def read(root, *rows, **values):
    """The texts of the examples, and how the rows are read."""
    data = prepare_rows(root, CHATML, {"a.json": list(rows)}, **values)
    assert data.report.problems == ()
    return [example.text for example in data.examples], data.report.sources[0].what


def problem_of(root, row, good=None, **values):
    data = prepare_rows(root, CHATML, {"a.json": [good or PAIR, row]}, **values)
    (problem, *_) = data.report.problems
    assert problem.startswith("a.json, row 2: ")
    return problem


@pytest.mark.parametrize(
    ("row", "reason"),
    [
        ({"messages": [USER, REPLY]}, "chats, because the rows have the column 'messages'"),
        ({"conversations": [{"from": "human", "value": "q"}, {"from": "gpt", "value": "a"}]}, "'conversations'"),
        ({"messages": [{"role": "user", "content": [{"type": "text", "text": "q"}]}, REPLY]}, "'messages'"),
        (PAIR, "questions and answers, because the rows have the columns 'instruction' and 'output'"),
        ({"instruction": "q", "input": " ", "output": "a"}, "'instruction', 'input' and 'output'"),
        ({"instruction": "q", "input": float("nan"), "output": "a"}, "'instruction', 'input' and 'output'"),
        ({"Instruction ": "q", " OUTPUT": "a", "id": 5}, "'Instruction ' and ' OUTPUT'"),
        ({"prompt": "q", "response": "a"}, "'prompt' and 'response'"),
        ({"input": "q", "output": "a"}, "'input' and 'output'"),
        ({"prompt": [USER], "completion": [REPLY]}, "chats in 'prompt' and 'completion'"),
        ({"messages": json.dumps([USER, REPLY])}, "lists of messages as text in the column 'messages'"),
    ],
)
def test_rows_that_are_read_as_chats(tmp_path, row, reason):
    (text,), what = read(tmp_path, row)
    assert text == TURNS and reason in what


@pytest.mark.parametrize(
    ("row", "text"),
    [
        ({"text": "the t"}, "the t<|im_end|>"),
        ({"anything": "the t", "id": 1}, "the t<|im_end|>"),
        ({"prompt": "q ", "completion": "a"}, "q a<|im_end|>"),
        ({"prompt": "q ", "generation": "a"}, "q a<|im_end|>"),
        ({"chat": "[INST] Hi"}, "[INST] Hi<|im_end|>"),
        ({"instruction": "q", "output": 7}, TURNS.replace("a<|im_end|>", "7<|im_end|>")),
        ({"instruction": "q", "input": "more", "output": "a"}, TURNS.replace("q", "q\n\nmore")),
    ],
)
def test_texts_and_inputs(tmp_path, row, text):
    assert read(tmp_path, row)[0] == [text]


@pytest.mark.parametrize("row", [PAIR, {"messages": [USER, REPLY]}])
def test_a_system_message_of_the_settings_is_for_rows_without_one(tmp_path, row):
    with_own = {**row, "system": "own"} if row is PAIR else {"messages": [SYSTEM, USER, REPLY]}
    blank = {**row, "system": " \n"} if row is PAIR else {"messages": [{**SYSTEM, "content": None}, USER, REPLY]}
    texts, _ = read(tmp_path / "a", row, with_own, blank, system="given")
    assert texts == [GIVEN + TURNS, OWN + TURNS, GIVEN + TURNS]
    assert read(tmp_path / "b", row, with_own, blank)[0] == [TURNS, OWN + TURNS, TURNS]


def test_the_chosen_format_must_fit_the_rows(tmp_path):
    for number, (row, values, message) in enumerate(
        (
            ({"body_a": "x", "body_b": "y"}, {}, r"a\.json: the rows have the columns body_a, body_b, and none"),
            ({"text": "the t"}, {"format": "chat"}, "plain text, but a chat template needs messages"),
            (PAIR, {"format": "text"}, "have no text column"),
        )
    ):
        with pytest.raises(DataError, match=message):
            read(tmp_path / str(number), row, **values)
    assert read(tmp_path / "a", {**PAIR, "text": "the t"}, format="text")[0] == ["the t<|im_end|>"]
    assert read(tmp_path / "b", {"prompt": "q", "completion": "a"}, format="chat")[0] == [TURNS]


@pytest.mark.parametrize(
    ("row", "expected"),
    [
        ({"output": "a"}, "has no 'instruction'; its columns are: output."),
        ({"instruction": None, "output": "a"}, "'instruction' is null."),
        ({"instruction": True, "output": "a"}, "'instruction' is true. It must be text in quotes."),
        ({"instruction": "q", "output": " \n"}, "'output' is empty. Fill it in, or remove the row."),
    ],
)
def test_bad_questions_and_answers(tmp_path, row, expected):
    assert expected in problem_of(tmp_path, row)


@pytest.mark.parametrize(
    ("messages", "expected"),
    [
        ("hi", "'messages' is a string. It must be a list of messages."),
        ([USER], "has no message from the assistant (role 'assistant', or 'gpt' under 'from')."),
        ([{"content": "q"}], "message 1 has no role. Its role must be system, user, assistant or tool"),
        ([{"role": "wizard", "content": "q"}], "message 1 has the role 'wizard'. Its role must be"),
        ([USER, {"role": "assistant", "content": 7}], "the content of message 2 is a number (7). It must be"),
        ([USER, {"role": "assistant", "content": ""}], "message 2 is empty. Fill it in, or remove it."),
        ([{"role": "user", "content": [{"type": "image"}]}, REPLY], "message 1 contains more than text."),
        ([USER, {**REPLY, "weight": 0.5}], "message 2 has weight = 0.5. Use true or false for 'train', and"),
    ],
)
def test_bad_chats(tmp_path, messages, expected):
    assert expected in problem_of(tmp_path, {"messages": messages}, {"messages": [USER, REPLY]})


RNG = random.Random(3)
WORDS, OTHERS = ([f"word{RNG.randrange(5000)}" for _ in range(80)] for _ in range(2))
SIMILAR = "1 row is nearly the same as an earlier one; row 3 is similar to row 1."
MOJIBAKE = "contains broken characters from a wrong encoding; the first is row 2"
HTML, MARKERS = "contains leftover HTML; the first is row 2", "contains prompt template markers, "


def advice(root, *texts):
    return prepare_rows(root, CHATML, {"a.json": [{"text": text} for text in texts]}).report.advice


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Blue is a colour, 3 < 4 & 5 > 2.", "Größe, naïve, Ångström, Â, Ã.", "### A heading, <3"), None),
        (("What is one and one? Two.", "What is one and one? 2."), None),
        (("Clean.", "I am sorry. As an AI language model, I"), "contains a refusal or mentions another"),
        (("Clean.", "It wasnâ€™t me"), f"{MOJIBAKE} ('â€™')."),
        (("Clean.", "a \ufffd b"), MOJIBAKE),
        (("Clean.", "<p>Hello</p>"), f"{HTML} ('<p>')."),
        (("Clean.", "one <|im_end|> two"), MARKERS),
        (("One two.", "Three.", "one  TWO.", "one two."), "2 of 4 rows are duplicates; row 3 is the same as row"),
        (
            (" ".join(WORDS), " ".join(OTHERS), " ".join("and" if n % 20 == 7 else WORDS[n] for n in range(80))),
            SIMILAR,
        ),
    ],
)
def test_issues_of_texts(tmp_path, texts, expected):
    sentences = advice(tmp_path, *texts)
    if expected is None:
        assert sentences == ()
    else:
        (sentence,) = sentences
        assert sentence.startswith("a.json: 1 ") or "duplicates" in sentence
        assert expected in sentence


def test_refusals_count_only_where_they_are_learned(tmp_path):
    in_question = chat("Say: as an AI language model", "No.")
    in_reply = chat("Hi there", "As an AI language model, no.")
    assert prepare_rows(tmp_path / "a", CHATML, {"rows.jsonl": [in_question]}).report.advice == ()
    (sentence,) = prepare_rows(tmp_path / "b", CHATML, {"rows.jsonl": [in_question, in_reply]}).report.advice
    assert "the first is line 2" in sentence


def test_the_sections_of_a_text_are_inspected(tmp_path):
    text = "A story that is told.\n\n\nAnd its end, with <br> in it.\n\n\nA story that is told."
    html, double = prepare_rows(tmp_path / "a", CHATML, {"a.txt": text}).report.advice
    assert html.startswith("a.txt: 1 of 3 sections contains")
    assert double.startswith("a.txt: 1 of 3 sections is a dup")
    (sentence,) = prepare_rows(tmp_path / "b", CHATML, {"a.txt": "A <|im_start|> in it."}).report.advice
    assert sentence.startswith("a.txt: 1 of 1 section contains prompt template markers, which the model")


def test_the_users_list_of_phrases_replaces_the_shipped_one(tmp_path):
    def told(folder, phrases):
        files = {"a.jsonl": [chat("Hi", "As an AI language model, la la.")], "../refusals.txt": phrases}
        return prepare_rows(tmp_path / folder, CHATML, files, data=["a.jsonl"]).report.advice

    assert told("a", "# mine\nNever\n\n") == () and "'la la'" in told("b", "La la\n")[0]
    with pytest.raises(DataError, match="Save it as UTF-8"):
        told("c", b"\xff\xfe\xff")
