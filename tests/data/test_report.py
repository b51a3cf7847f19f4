"""What Check says, in lines and as JSON."""

from __future__ import annotations

import json

import pytest
from training_pro.data.report import DatasetReport, SourceReport

SOURCE = SourceReport(
    name="story.txt",
    what="raw text",
    files=1,
    parts=2,
    sentences=9,
    blocks=4,
    overlaps=3,
    tokens=150,
    text_tokens=100,
    characters=400,
    left_out=1,
    characters_lost=0,
    seen_least=1,
    seen_mean=1.5,
    seen_most=2,
    notes=("read as cp1252",),
)
REPORT = DatasetReport(7, 150, 143, 30, 32, 2, 4, sources=(SOURCE,), advice=("Mind this.",))
KEYS = [
    "verdict",
    "examples",
    "tokens",
    "trained_tokens",
    "longest",
    "cutoff",
    "steps_per_epoch",
    "steps",
    "sources",
    "problems",
    "advice",
]


def test_the_report_in_lines():
    assert REPORT.text().splitlines() == [
        "Verdict: ready with advice",
        "Advice: Mind this.",
        "story.txt: raw text, 1 file, 2 parts, 9 sentences -> 4 blocks and 3 overlap blocks, 1 too small; "
        "characters lost: 0",
        "  each sentence is seen 1 to 2 times a pass, 1.5 on average; 1.50 times the tokens of the text are "
        "trained",
        "  read as cp1252",
        "7 examples, 150 tokens (143 learned from), longest 30 of 32; 2 steps an epoch, 4 in all",
    ]


def test_the_report_as_json():
    known = json.loads(json.dumps(REPORT.as_json()))
    assert [key for key in known if key in KEYS] == KEYS
    assert known["sources"][0]["name"] == "story.txt"
    assert "maps" not in known["sources"][0]


@pytest.mark.parametrize(
    ("problems", "advice", "verdict"),
    [((), (), "ready"), ((), ("a",), "ready with advice"), (("p",), ("a",), "not ready")],
)
def test_the_verdict(problems, advice, verdict):
    report = DatasetReport(0, 0, 0, 0, 0, 0, 0, problems=problems, advice=advice)
    assert (report.verdict, report.as_json()["verdict"]) == (verdict, verdict)
    assert report.text().splitlines()[0] == f"Verdict: {verdict}"
