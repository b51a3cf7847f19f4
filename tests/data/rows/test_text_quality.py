"""What Check says of the words themselves, and where."""

from __future__ import annotations

import random

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows.text_quality import Inspector, refusals
from training_pro.tests.fakes import made_folders
from training_pro.tests.rowing import chat, family, made

CHATML = family("ChatML")


def said(*texts):
    inspector = Inspector(("as an ai language model",))
    for number, text in enumerate(texts, start=1):
        inspector.look(text, text, f"row {number}")
    return list(inspector.said("a.jsonl", "row"))


def test_clean_texts_need_no_word():
    assert said("Blue is a colour, 3 < 4 & 5 > 2.", "Größe, naïve, Ångström, Â, Ã.", "### A heading, <3") == []


@pytest.mark.parametrize(
    ("text", "what"),
    [
        (
            "I am sorry. As an AI language model, I",
            "hold a refusal or talk of another assistant; the first is row 2 ('as an ai",
        ),
        ("It wasnâ€™t me", "hold broken letters, read in a wrong encoding before; the first is row 2 ('â€™')."),
        ("GrÃ¶ÃŸe", "hold broken letters"),
        ("a \ufffd b", "hold broken letters"),
        ("<p>Hello</p>", "hold remains of HTML; the first is row 2 ('<p>')."),
        ("a&nbsp;b", "hold remains of HTML"),
        (
            "one <|im_end|> two",
            "hold words of prompt templates in their text, which the template puts there itself",
        ),
        ("### Response: a", "hold words of prompt templates"),
    ],
)
def test_what_is_wrong_with_a_text(text, what):
    (sentence,) = said("Clean.", text)
    assert sentence.startswith("a.jsonl: 1 of 2 rows ")
    assert what in sentence


def test_the_same_twice():
    assert said("One two.", "Three.", "one  TWO.", "one two.") == [
        "a.jsonl: 2 of 4 rows are there already; row 3 is the same as row 1."
    ]


def test_nearly_the_same():
    rng = random.Random(3)
    words = [f"word{rng.randrange(5000)}" for _ in range(80)]
    like = [*words[:40], "other", *words[41:]]
    unlike = [f"word{rng.randrange(5000)}" for _ in range(80)]
    assert said(" ".join(words), " ".join(unlike), " ".join(like)) == [
        "a.jsonl: 1 row is nearly the same as earlier ones; row 3 is like row 1."
    ]


def test_short_texts_are_never_nearly_the_same():
    assert said("What is one and one? Two.", "What is one and one? 2.") == []


def test_refusals_count_where_they_are_learned(tmp_path):
    asked = chat("Say: as an AI language model", "No.")
    answered = chat("Hi there", "As an AI language model, no.")
    assert made(tmp_path / "a", CHATML, {"rows.jsonl": [asked]}).report.advice == ()
    (sentence,) = made(tmp_path / "b", CHATML, {"rows.jsonl": [asked, answered]}).report.advice
    assert "the first is line 2" in sentence


def test_words_that_a_template_writes_itself_are_no_finding(tmp_path):
    data = made(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No.")]})
    assert data.report.verdict == "ready"


def test_parts_of_a_text_are_looked_at(tmp_path):
    text = "A story that is told.\n\n\nAnd its end, with <br> in it.\n\n\nA story that is told."
    advice = made(tmp_path, CHATML, {"a.txt": text}).report.advice
    assert [sentence.split(": ")[1][:24] for sentence in advice] == [
        "1 of 3 parts hold remain",
        "1 of 3 parts are there a",
    ]


def test_the_list_of_phrases_is_the_user_s(tmp_path):
    folders = made_folders(tmp_path)
    assert "as an ai language model" in refusals(folders)
    assert not any(phrase.startswith("#") for phrase in refusals(folders))
    folders.refusals.write_text("# mine\nLa la\n\n", encoding="utf-8")
    assert refusals(folders) == ("la la",)
    folders.refusals.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="Save it as UTF-8"):
        refusals(folders)
