"""Every example dataset is checked and trained on; the counts of Check and of the run agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training_pro.data import dataset_index
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.engine.architectures import read_graph, read_log

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix != ".md" and path.name != "settings")


def test_there_is_one_of_each_kind():
    endings = {path.suffix for path in EXAMPLES.rglob("*") if path.is_file()}
    alike = {".htm": ".html", ".ndjson": ".jsonl", ".sqlite": ".db", ".sqlite3": ".db", ".vtt": ".srt"}
    assert {alike.get(kind, kind) for kind in dataset_index.DATA_SUFFIXES} <= endings
    assert any(path.is_dir() for path in EXAMPLES.iterdir())


@pytest.mark.parametrize("name", KINDS)
def test_check_is_ready_for_it(place, name):
    report = PeftEngine().check(place.settings(data=[name], cutoff="auto", learning_rate=2e-4), place.host())
    assert (report.problems, report.verdict) == ((), "ready")


@pytest.mark.parametrize(
    "asked",
    [
        {"data": ["ferry-chats.jsonl", "ferry-questions.json"], "cutoff": "auto"},
        {"data": KINDS, "max_steps": 2, "min_chars": 60, "too_long": "split", "cutoff": 64, "overlap": True},
    ],
    ids=["an epoch", "all with what is left out"],
)
def test_check_says_what_the_run_does(place, asked):
    asked = {**asked, "rank": 2, "eval_share": 0.1 if "min_chars" in asked else 0}
    report = json.loads(json.dumps(PeftEngine().check(place.settings(**asked), place.host()).as_json()))
    assert report["problems"] == []
    place.train(**asked)
    log, graph = read_log(place), read_graph(place)
    counts = ("examples", "tokens", "trained_tokens", "longest", "cutoff", "steps", "steps_per_epoch")
    for key in (*counts, "sources", "lengths", "kept_aside", "stops"):
        assert log["data"][key] == report[key], key
    assert log["current_steps"] == report["steps"]
    if "max_steps" in asked:
        assert sum(source["text"]["left_out"] for source in report["sources"] if source["text"]) > 0
        assert sum(source["rows"]["too_long"] for source in report["sources"] if source["rows"]) > 0
    else:
        assert sum(entry["tokens"] for entry in graph) == report["tokens"]
