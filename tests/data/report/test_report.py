"""The report of Check, and the hard cuts that it suggests for chat logs and numbered verses."""

from __future__ import annotations

import pytest
from training_pro.core.findings import advice, note, problem
from training_pro.data import load
from training_pro.data.report import DatasetReport, LengthHistogram, SourceReport
from training_pro.data.rows import RowReport
from training_pro.data.text import SliceMap
from training_pro.tests.rowing import family, prepare_rows

TEXT = SliceMap(
    **{"parts": 2, "sentences": 9, "blocks": 4, "overlaps": 3, "text_tokens": 100, "characters": 400},
    **{"left_out": 1, "seen_least": 1, "seen_mean": 1.5, "seen_most": 2},
)
STORY = SourceReport("story.txt", "raw text", 1, 7, 150, 143, text=TEXT, notes=("read as cp1252",))
ROWS = RowReport(rows=12, unreadable=1, too_long=2, too_long_how="dropped")
CHATS = SourceReport("chats.jsonl", "chats", 1, 9, 90, 77, lengths=LengthHistogram(8, (4, 5), 16, 15), rows=ROWS)
RESOLVED = load.ResolvedSettings(32, 1, False, 8)
FINDINGS = (note("", "By the way."), advice("", "Mind this."), note("", "By the way."))
REPORT = DatasetReport(7, 150, 143, 30, 2, 4, sources=(STORY,), findings=FINDINGS, resolved=RESOLVED)


def test_the_report_in_lines():
    assert REPORT.text().splitlines() == [
        "Verdict: ready with advice",
        "Advice: Mind this.",
        "Note: By the way.",
        "story.txt: raw text, 1 file, 2 sections, 9 sentences -> 4 blocks and 3 overlap blocks",
        "  blocks consist of whole sentences; the model sees each sentence 1 to 2 times per epoch; "
        "an epoch has 1.50 times as many tokens as the text. No characters are lost in slicing; 1 block "
        "(0 characters) was dropped as too small",
        "  read as cp1252",
        "7 examples, 150 tokens (143 trained on); the longest has 30 tokens (cutoff 32); 2 steps per epoch, "
        "4 in total",
    ]
    report = DatasetReport(16, 240, 220, 30, 4, 8, sources=(STORY, CHATS), resolved=RESOLVED)
    assert report.text().splitlines()[4:6] == [
        "chats.jsonl: chats; 12 rows -> 9 examples; 1 can't be read; 2 too long (dropped); 90 "
        "tokens, 77 trained on; the two longest examples have 16 and 15 tokens",
        "Trained tokens by dataset: story.txt 65%, chats.jsonl 35%",
    ]


def test_the_worst_finding_is_the_verdict():
    verdicts = []
    for findings in ((note("", "n"),), (note("", "n"), advice("", "a")), (advice("", "a"), problem("", "p"))):
        report = DatasetReport(findings=findings)
        assert report.text().splitlines()[0] == f"Verdict: {report.verdict}"
        verdicts.append(report.as_json()["verdict"])
    assert verdicts == ["ready", "ready with advice", "not ready"]


NAMES, IRC, TIMES = (
    "Hobo: Can you spare any change today?\nMan: Sorry, no, I have none.\nHobo: I was not asking you anyway.",
    "<anna> has anybody seen the keys of the car?\n<bob> they are on the table in the kitchen",
    "[12:01] Dad: Where is the auditorium, please?\n[12:02] Guard: It is on the second floor, sir.",
)
NO_TALK = {
    "play": "HAMLET: To be, or not to be, that is it.\nOPHELIA: Good my lord, how does your honor do?\n\n",
    "novel": "It was late, and she said: nobody is coming today.\nHe looked at the lamp and then at the sea.\n\n",
    "code": "def add(a: int, b: int) -> int:\n    # Note: it adds two numbers\n    return a + b\n\n",
    "forum": "Posted by anna on Monday\nHas anybody seen this error before?\nIt comes when I press Start.\n\n",
    "subtitles": "1\n00:00:01,000 --> 00:00:02,000\nWho is there in the dark?\n\n",
    "one conversation": f"{NAMES}\n",
    "hard cuts": f"{NAMES}\n\n\n",
}


def check(root, text, **settings):
    return prepare_rows(root, family("ChatML"), {"a.txt": text}, cutoff=64, **settings).report


def suggested(root, text, **settings):
    return [(s.value, s.why) for s in check(root, text, **settings).suggestions if s.key == "hard_cut"]


@pytest.mark.parametrize("talk", [NAMES, IRC, TIMES], ids=["names", "irc", "times"])
def test_the_empty_line_between_conversations_is_suggested(tmp_path, talk):
    ((value, why),) = suggested(tmp_path / "a", f"{talk}\n\n" * 20)
    assert value == r"\n\n" and why.startswith("a.txt: empty lines separate 20 conversations.")
    assert suggested(tmp_path / "b", f"{talk}\n\n" * 20, hard_cut=value) == []


@pytest.mark.parametrize("text", NO_TALK.values(), ids=NO_TALK)
def test_no_empty_line_is_suggested_for_other_texts(tmp_path, text):
    report = check(tmp_path, text * 20)
    assert [s.value for s in report.suggestions if s.key == "hard_cut" and s.value == r"\n\n"] == []


def test_the_chapters_of_a_chinese_novel_are_suggested_unless_there_are_enough_sections(tmp_path):
    chapter = "第{}回　醉金刚轻财尚义侠\n\n话说林黛玉正自情思萦逗，忽有人从背后击了一掌．\n\n"
    for number in ("二十四", "12"):
        ((value, why),) = suggested(tmp_path / number, chapter.format(number) * 5)
        assert value == r"\n第" and why.startswith("a.txt: '第' appears 5 times at the start of a line")
    inside = "第二天，他醒了。\n"  # would be cut, too
    assert suggested(tmp_path / "inside", chapter.format("一") * 5 + inside) == []
    chapters = [f"第{n}回　风雪山神庙\n林冲在草料场里住下了。雪越下越大。" for n in "一二三四五六七八九十"]
    text = "\n\n\n".join("\n".join(chapters[first : first + 5]) for first in (0, 5))
    ((value, why),) = suggested(tmp_path / "a", text)
    assert value == r"\n第" and "10 headings start with '第', but there are only 2 sections" in why
    assert suggested(tmp_path / "b", "\n\n\n".join(chapters)) == []


def test_sections_that_end_in_a_sentence_are_called_page_breaks(tmp_path):
    def told(folder, pages):
        advice = check(tmp_path / folder, "\n\n\n".join(pages)).advice
        return [sentence for sentence in advice if "page breaks" in sentence]

    scan = ["the road was long and the wind blew from", "the sea. They went on to the har-", "bor, and there"] * 4
    assert told("scan", scan)[0].startswith("a.txt: 11 of 12 sections end in the middle of a sentence")
    assert told("book", ["They came home.", "The next day it rained.", "“And then?”"] * 4) == []
    assert told("verse", ["Tyger, tyger, burning bright", "In the forests of the night"] * 6) == []
