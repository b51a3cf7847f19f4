"""Hard cuts that Check suggests for chat logs, and what it says of numbered verses; other texts get neither."""

from __future__ import annotations

from pathlib import Path

import pytest
from training_pro.data.report.hard_cuts import describe_verses
from training_pro.tests.rowing import family, prepare_rows

CHATML = family("ChatML")
EXCERPTS = Path(__file__).parents[2] / "real" / "excerpts"
TALK = (
    "Hobo: Can you spare any change today?\nMan: Sorry, no, I have none.\nHobo: I was not asking you anyway.",
    "<anna> has anybody seen the keys of the car?\n<bob> they are on the table in the kitchen",
    "[12:01] Dad: Where is the auditorium, please?\n[12:02] Guard: It is on the second floor, sir.",
)
PLAY = "HAMLET: To be, or not to be, that is the question.\nOPHELIA: Good my lord, how does your honor do?"
SPEECHES = "Hamlet: To be, or not to be, that is the question.\n\nOphelia: Good my lord, how does your honor do?"
NOVEL = "It was late, and she said: nobody is coming today.\nHe looked at the lamp and then at the sea.\n\n" * 20
CODE = "def add(a: int, b: int) -> int:\n    # Note: it adds two numbers\n    return a + b\n\n" * 20
CONFIGURATION = "name: anna\nage: 12\ncity: Lyon\n\n" * 20
FORUM = "Posted by anna on Monday\nHas anybody seen this error before?\nIt comes when I press Start.\n\n" * 20
SRT = "1\n00:00:01,000 --> 00:00:02,000\nWho is there in the dark?\n\n" * 20


def verses(chapters: int, count: int) -> str:
    return "\n".join(
        f"{c}:{v} And it was the verse {v} of {c}." for c in range(1, chapters + 1) for v in range(1, count)
    )


def suggested(tmp_path, text, **settings):
    report = prepare_rows(tmp_path, CHATML, {"a.txt": text}, cutoff=64, **settings).report
    return [(s.value, s.why) for s in report.suggestions if s.key == "hard_cut"]


@pytest.mark.parametrize("talk", TALK, ids=["names", "irc", "times"])
def test_the_empty_line_between_conversations_is_suggested(tmp_path, talk):
    ((value, why),) = suggested(tmp_path / "a", f"{talk}\n\n" * 20)
    assert value == r"\n\n"
    assert why.startswith("a.txt: empty lines separate 20 conversations. No block should contain text from more")
    assert suggested(tmp_path / "b", f"{talk}\n\n" * 20, hard_cut=value) == []


@pytest.mark.parametrize(
    "text",
    [
        f"{PLAY}\n\n" * 20, f"{SPEECHES}\n\n" * 20, NOVEL, CODE, CONFIGURATION, FORUM, SRT,
        f"{TALK[0]}\n" * 20, f"{TALK[0]}\n\n" * 4, f"{TALK[0]}\n\n\n" * 20, verses(5, 30),
    ],
    ids=[
        "play", "speeches", "novel", "code", "configuration", "forum", "subtitles",
        "one conversation", "few conversations", "hard cuts", "verses",
    ],
)  # fmt: skip
def test_no_empty_line_is_suggested_for_other_texts(tmp_path, text):
    assert [value for value, _ in suggested(tmp_path, text) if value == r"\n\n"] == []


@pytest.mark.parametrize("path", sorted(EXCERPTS.glob("*.txt")), ids=lambda path: path.stem)
def test_no_excerpt_of_a_book_is_taken_for_conversations(tmp_path, path):
    text = path.read_text(encoding="utf-8").partition("\n\n")[2].replace("¦", "")
    assert [value for value, _ in suggested(tmp_path, f"{text}\n\n" * 10) if value == r"\n\n"] == []


def test_check_says_where_to_cut_numbered_verses(tmp_path):
    report = prepare_rows(tmp_path, CHATML, {"a.txt": verses(5, 30)}, cutoff=64).report
    (sentence,) = (sentence for sentence in report.advice if "hard cut" in sentence)
    assert sentence.endswith(
        "The model may not learn to stop. The verses of this text are numbered 1:1 to 5:29. A hard cut matches "
        "only one fixed string, so it can't match chapter numbers that change. Insert the hard cut before the "
        "first verse of each chapter in your text (before 2:1, 3:1, 4:1 and so on)."
    )


@pytest.mark.parametrize(
    "text",
    [NOVEL, CODE, CONFIGURATION, FORUM, SRT, f"{TALK[2]}\n\n" * 20, verses(1, 60), "12:30 lunch\n" + NOVEL],
)
def test_other_texts_have_no_verses(text):
    assert describe_verses(text) == ""


@pytest.mark.parametrize("number", ["二十四", "12"])
def test_the_chapters_of_a_chinese_novel_are_suggested(tmp_path, number):
    chapter = f"第{number}回　醉金刚轻财尚义侠\n\n话说林黛玉正自情思萦逗，忽有人从背后击了一掌．\n\n"
    ((value, why),) = suggested(tmp_path, chapter * 5)
    assert value == r"\n第"
    assert why == "a.txt: '第' appears 5 times at the start of a line, so it may separate sections."


def test_headings_inside_sections_are_suggested(tmp_path):
    chapters = [f"第{n}回　风雪山神庙\n林冲在草料场里住下了。雪越下越大。" for n in "一二三四五六七八九十"]
    text = "\n\n\n".join("\n".join(chapters[first : first + 5]) for first in (0, 5))
    ((value, why),) = suggested(tmp_path / "a", text)
    assert value == r"\n第" and "10 headings start with '第', but there are only 2 sections" in why
    assert suggested(tmp_path / "b", "\n\n\n".join(chapters)) == []
    contents = "\n".join(f"Chapter {n}" for n in range(1, 11))
    book = "\n\n\n".join(f"Chapter {n}\nThey came to the sea and waited." for n in range(1, 11))
    assert suggested(tmp_path / "c", f"{contents}\n\n\n{book}") == []


def test_sections_that_end_in_a_sentence_are_called_page_breaks(tmp_path):
    def told(folder, pages):
        report = prepare_rows(tmp_path / folder, CHATML, {"a.txt": "\n\n\n".join(pages)}, cutoff=64).report
        return [sentence for sentence in report.advice if "page breaks" in sentence]

    scan = ["the road was long and the wind blew from", "the sea. They went on to the har-", "bor, and there"] * 4
    assert told("scan", scan)[0].startswith("a.txt: 11 of 12 sections end in the middle of a sentence")
    assert told("book", ["They came home.", "The next day it rained.", "“And then?”"] * 4) == []
    assert told("verse", ["Tyger, tyger, burning bright", "In the forests of the night"] * 6) == []
