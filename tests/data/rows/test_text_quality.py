"""Text quality: the sentences of Check about the words of texts, and where they are."""

from __future__ import annotations

import random

import pytest
from training_pro.core.errors import DataError
from training_pro.tests.rowing import chat, family, prepare_rows

CHATML = family("ChatML")
RNG = random.Random(3)
WORDS, OTHER_WORDS = ([f"word{RNG.randrange(5000)}" for _ in range(80)] for _ in range(2))
MOJIBAKE = "contains broken characters from a wrong encoding; the first is row 2"
HTML, MARKERS = "contains leftover HTML; the first is row 2", "contains prompt template markers, "


def advice(root, *texts):
    return prepare_rows(root, CHATML, {"a.json": [{"text": text} for text in texts]}).report.advice


@pytest.mark.parametrize(
    ("texts", "expected"),
    [
        (("Blue is a colour, 3 < 4 & 5 > 2.", "Größe, naïve, Ångström, Â, Ã.", "### A heading, <3"), None),
        (("What is one and one? Two.", "What is one and one? 2."), None),
        (
            ("Clean.", "I am sorry. As an AI language model, I"),
            "contains a refusal or mentions another",
        ),
        (("Clean.", "It wasnâ€™t me"), f"{MOJIBAKE} ('â€™')."),
        (("Clean.", "GrÃ¶ÃŸe"), MOJIBAKE),
        (("Clean.", "a \ufffd b"), MOJIBAKE),
        (("Clean.", "<p>Hello</p>"), f"{HTML} ('<p>')."),
        (("Clean.", "a&nbsp;b"), HTML),
        (("Clean.", "one <|im_end|> two"), MARKERS),
        (("Clean.", "### Response: a"), MARKERS),
        (
            ("One two.", "Three.", "one  TWO.", "one two."),
            "2 of 4 rows are duplicates; row 3 is the same as row",
        ),
        (
            (" ".join(WORDS), " ".join(OTHER_WORDS), " ".join([*WORDS[:40], "other", *WORDS[41:]])),
            "1 row is nearly the same as an earlier one; row 3 is similar to row 1.",
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
    assert html.startswith("a.txt: 1 of 3 sections contains") and double.startswith(
        "a.txt: 1 of 3 sections is a dup"
    )
    (sentence,) = prepare_rows(tmp_path / "b", CHATML, {"a.txt": "A <|im_start|> in it."}).report.advice
    assert sentence.startswith(
        "a.txt: 1 of 1 section contains prompt template markers, which the model would learn"
    )


def test_the_users_list_of_phrases_replaces_the_shipped_one(tmp_path):
    refused, phrases = [chat("Hi", "As an AI language model, la la.")], "../refusals.txt"
    data = prepare_rows(
        tmp_path / "a", CHATML, {"a.jsonl": refused, phrases: "# mine\nNever\n\n"}, data=["a.jsonl"]
    )
    assert data.report.advice == ()
    data = prepare_rows(tmp_path / "b", CHATML, {"a.jsonl": refused, phrases: "La la\n"}, data=["a.jsonl"])
    assert "'la la'" in data.report.advice[0]
    with pytest.raises(DataError, match="Save it as UTF-8"):
        prepare_rows(tmp_path / "c", CHATML, {"a.jsonl": refused, phrases: b"\xff\xfe\xff"}, data=["a.jsonl"])
