"""The report of Check, in lines and as JSON."""

from __future__ import annotations

import json

from training_pro.core.findings import advice, note, problem
from training_pro.data import resolve
from training_pro.data.report import DatasetReport, LengthHistogram, RowReport, SourceReport, TextReport

TEXT = TextReport(
    **{"parts": 2, "sentences": 9, "blocks": 4, "overlaps": 3, "text_tokens": 100, "characters": 400},
    **{"left_out": 1, "seen_least": 1, "seen_mean": 1.5, "seen_most": 2},
)
STORY = SourceReport("story.txt", "raw text", 1, 7, 150, 143, text=TEXT, notes=("read as cp1252",))
ROWS = RowReport(rows=12, unreadable=1, too_long=2, too_long_how="dropped")
CHATS = SourceReport("chats.jsonl", "chats", 1, 9, 90, 77, lengths=LengthHistogram(8, (4, 5), 16, 15), rows=ROWS)
RESOLVED = resolve.ResolvedSettings(32, 1, False, 8)
FINDINGS = (note("", "By the way."), advice("", "Mind this."), note("", "By the way."))
REPORT = DatasetReport(7, 150, 143, 30, 2, 4, sources=(STORY,), findings=FINDINGS, resolved=RESOLVED)


def test_the_report_in_lines():
    assert REPORT.text().splitlines() == [
        "Verdict: ready with advice",
        "Advice: Mind this.",
        "Note: By the way.",
        "story.txt: raw text, 1 file, 2 sections, 9 sentences -> 4 blocks and 3 overlap blocks, 1 dropped as too "
        "small; characters lost: 0",
        "  blocks consist of whole sentences; the model sees each sentence 1 to 2 times per epoch; "
        "an epoch has 1.50 times as many tokens as the text",
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


def test_the_report_as_json():
    content = json.loads(json.dumps(REPORT.as_json()))
    assert content["sources"][0]["name"] == "story.txt" and content["sources"][0]["text"]["blocks"] == 4
    assert (content["problems"], content["advice"], content["notes"]) == ([], ["Mind this."], ["By the way."])
    assert content["resolved"] == {"cutoff": 32, "accumulation": 1, "gradient_checkpointing": "off", "alpha": 8}
    assert DatasetReport().as_json()["resolved"] == {}


def test_the_worst_finding_is_the_verdict():
    verdicts = []
    for findings in ((note("", "n"),), (note("", "n"), advice("", "a")), (advice("", "a"), problem("", "p"))):
        report = DatasetReport(findings=findings)
        assert report.text().splitlines()[0] == f"Verdict: {report.verdict}"
        verdicts.append(report.as_json()["verdict"])
    assert verdicts == ["ready", "ready with advice", "not ready"]
