"""Every example dataset is checked and trained on; the counts of Check and of the run agree."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from training_pro.data import dataset_index
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.tiny import Workspace

EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = sorted(path.name for path in EXAMPLES.iterdir() if path.suffix not in (".md",) and path.name != "settings")


def test_there_is_one_of_each_kind():
    endings = {path.suffix for path in EXAMPLES.rglob("*") if path.is_file()}
    alike = {".htm": ".html", ".ndjson": ".jsonl", ".sqlite": ".db", ".sqlite3": ".db", ".vtt": ".srt"}
    assert {alike.get(kind, kind) for kind in dataset_index.DATA_SUFFIXES} <= endings
    assert any(path.is_dir() for path in EXAMPLES.iterdir())


@pytest.mark.parametrize("name", KINDS)
def test_check_says_what_the_run_does(place: Workspace, name: str):
    asked = {"data": [name], "cutoff": "auto", "max_steps": 2, "rank": 2, "learning_rate": 2e-4}
    report = PeftEngine().check(place.settings(**asked), place.host())
    assert (report.problems, report.verdict) == ((), "ready")
    place.train(**asked)
    log = json.loads((place.lora() / "training_log.json").read_text(encoding="utf-8"))
    graph = json.loads((place.lora() / "training_graph.json").read_text(encoding="utf-8"))
    for number in ("examples", "tokens", "trained_tokens", "longest", "cutoff", "steps", "steps_per_epoch"):
        assert log["data"][number] == getattr(report, number)
    assert (len(graph), log["current_steps"]) == (report.steps, report.steps)
    assert len(json.loads((place.lora() / "train_dataset_sample.json").read_text(encoding="utf-8"))) > 0


def test_an_epoch_sees_each_token_once(place: Workspace):
    asked = {"data": ["ferry-chats.jsonl", "ferry-questions.json"], "cutoff": "auto", "epochs": 1, "rank": 2}
    report = PeftEngine().check(place.settings(**asked), place.host())
    place.train(**asked)
    graph = json.loads((place.lora() / "training_graph.json").read_text(encoding="utf-8"))
    assert sum(entry["tokens"] for entry in graph) == report.tokens
    assert len(graph) == report.steps == report.steps_per_epoch


def test_all_of_them_together_with_what_is_left_out(place: Workspace):
    """With short blocks, long rows and a validation split, the counts agree too."""
    more = {"min_chars": 60, "too_long": "split", "cutoff": 64, "eval_share": 0.1, "overlap": True}
    asked = {"data": KINDS, "max_steps": 1, "rank": 2, **more}
    report = json.loads(json.dumps(PeftEngine().check(place.settings(**asked), place.host()).as_json()))
    assert report["problems"] == []
    place.train(**asked)
    log = json.loads((place.lora() / "training_log.json").read_text(encoding="utf-8"))["data"]
    for key in (
        "examples",
        "tokens",
        "trained_tokens",
        "longest",
        "steps",
        "sources",
        "lengths",
        "kept_aside",
        "stops",
    ):
        assert log[key] == report[key], key
    assert sum(source["text"]["left_out"] for source in report["sources"] if source["text"]) > 0
    assert sum(source["rows"]["too_long"] for source in report["sources"] if source["rows"]) > 0
