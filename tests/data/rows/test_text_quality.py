"""Text quality: the sentences of Check about the words of texts, and where they are."""

from __future__ import annotations

import random

import pytest
from training_pro.core.errors import DataError
from training_pro.data.rows.text_quality import TextInspector, load_refusal_phrases
from training_pro.tests.fakes import make_folders
from training_pro.tests.rowing import chat, family, prepare_rows

CHATML = family("ChatML")


def inspect_texts(*texts):
    inspector = TextInspector(("as an ai language model",))
    for number, text in enumerate(texts, start=1):
        inspector.look(text, text, f"row {number}")
    return [finding.text for finding in inspector.findings("a.jsonl", "row")]


def test_clean_texts_have_no_issues():
    assert (
        inspect_texts("Blue is a colour, 3 < 4 & 5 > 2.", "Größe, naïve, Ångström, Â, Ã.", "### A heading, <3")
        == []
    )


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        (
            "I am sorry. As an AI language model, I",
            "contains a refusal or mentions another assistant; the first is row 2 ('as an ai",
        ),
        ("It wasnâ€™t me", "contains broken characters from a wrong encoding; the first is row 2 ('â€™')."),
        ("GrÃ¶ÃŸe", "contains broken characters"),
        ("a \ufffd b", "contains broken characters"),
        ("<p>Hello</p>", "contains leftover HTML; the first is row 2 ('<p>')."),
        ("a&nbsp;b", "contains leftover HTML"),
        (
            "one <|im_end|> two",
            "contains prompt template markers, although the template adds its own",
        ),
        ("### Response: a", "contains prompt template markers"),
    ],
)
def test_issues_of_a_text(text, expected):
    (sentence,) = inspect_texts("Clean.", text)
    assert sentence.startswith("a.jsonl: 1 of 2 rows ")
    assert expected in sentence


def test_markers_in_a_text_are_learned_and_those_in_a_row_are_doubled():
    inspector = TextInspector(())
    inspector.look("<|im_start|>", "<|im_start|>", "section 1")
    (finding,) = inspector.findings("a.txt", "section")
    assert "contains prompt template markers, which the model would learn to write; the first" in finding.text


def test_duplicates():
    assert inspect_texts("One two.", "Three.", "one  TWO.", "one two.") == [
        "a.jsonl: 2 of 4 rows are duplicates; row 3 is the same as row 1."
    ]


def test_near_duplicates():
    rng = random.Random(3)
    words = [f"word{rng.randrange(5000)}" for _ in range(80)]
    similar = [*words[:40], "other", *words[41:]]
    different = [f"word{rng.randrange(5000)}" for _ in range(80)]
    assert inspect_texts(" ".join(words), " ".join(different), " ".join(similar)) == [
        "a.jsonl: 1 row is nearly the same as an earlier one; row 3 is similar to row 1."
    ]


def test_short_texts_are_never_near_duplicates():
    assert inspect_texts("What is one and one? Two.", "What is one and one? 2.") == []


def test_refusals_count_only_where_they_are_learned(tmp_path):
    in_question = chat("Say: as an AI language model", "No.")
    in_reply = chat("Hi there", "As an AI language model, no.")
    assert prepare_rows(tmp_path / "a", CHATML, {"rows.jsonl": [in_question]}).report.advice == ()
    (sentence,) = prepare_rows(tmp_path / "b", CHATML, {"rows.jsonl": [in_question, in_reply]}).report.advice
    assert "the first is line 2" in sentence


def test_words_that_a_template_adds_are_not_an_issue(tmp_path):
    data = prepare_rows(tmp_path, CHATML, {"rows.jsonl": [chat("Hi", "No.")]})
    assert data.report.verdict == "ready"


def test_the_sections_of_a_text_are_inspected(tmp_path):
    text = "A story that is told.\n\n\nAnd its end, with <br> in it.\n\n\nA story that is told."
    advice = prepare_rows(tmp_path, CHATML, {"a.txt": text}).report.advice
    assert [sentence.split(": ")[1][:24] for sentence in advice] == [
        "1 of 3 sections contains",
        "1 of 3 sections is a dup",
    ]


def test_sentences_about_one_section_are_in_the_singular(tmp_path):
    (sentence,) = prepare_rows(tmp_path, CHATML, {"a.txt": "Its end, with <br> in it."}).report.advice
    assert sentence.startswith("a.txt: 1 of 1 section contains leftover HTML; the first is section 1 ")


def test_the_users_list_of_phrases_replaces_the_shipped_one(tmp_path):
    folders = make_folders(tmp_path)
    assert "as an ai language model" in load_refusal_phrases(folders)
    assert not any(phrase.startswith("#") for phrase in load_refusal_phrases(folders))
    folders.refusal_phrases.write_text("# mine\nLa la\n\n", encoding="utf-8")
    assert load_refusal_phrases(folders) == ("la la",)
    folders.refusal_phrases.write_bytes(b"\xff\xfe\xff")
    with pytest.raises(DataError, match="Save it as UTF-8"):
        load_refusal_phrases(folders)
