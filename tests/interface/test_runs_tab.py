"""The Runs tab: how a run went, in words."""

from __future__ import annotations

import pytest
from training_pro.core.session import Session
from training_pro.interface import runs_tab
from training_pro.interface.joined import Joined
from training_pro.records import inventory
from training_pro.records.verdict import verdict
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import FINISHED, LOG, made

GRAPH = [{"current_steps": s, "loss": 3 - s / 4, "smoothed_loss": 3 - s / 4, "epoch": s / 8} for s in range(1, 9)]


@pytest.fixture
def folders(tmp_path):
    return made_folders(tmp_path)


def went(folders, **more):
    """What is shown of a run whose folder holds these files too."""
    folder = made(folders.loras, "story", {**FINISHED, **more})
    return runs_tab.how_it_went(inventory.one(folder, folders))


def test_the_verdict_is_a_sentence(folders):
    judged = verdict(GRAPH, {})
    shown = went(folders, **{"training_log.json": {**LOG, "verdict": judged.as_log()}})
    assert f"<p>{judged.text}</p>" in shown
    assert "not known" not in shown and "evidence" not in shown


@pytest.mark.parametrize("name", [None, "", "nowhere", "story/checkpoint-99", ".."])
def test_of_what_is_gone_nothing_is_shown(folders, name):
    made(folders.loras, "story", FINISHED)
    tab = runs_tab.RunsTab(Joined(FakeHost(folders=folders), None, Session()))
    assert tab._one(name) == ("", "")
    shown, note = tab._one("story/checkpoint-4-epoch-1")
    assert "<h4>story</h4>" in shown and note == "the good one"


@pytest.mark.parametrize(
    "log", [LOG, {**LOG, "verdict": "of another program"}, "no JSON"], ids=["none", "strange", "broken"]
)
def test_without_a_verdict_nothing_is_said_in_its_place(folders, log):
    shown = went(folders, **{"training_log.json": log, "training_graph.json": GRAPH})
    assert "<p>" not in shown
    assert "<svg" in shown and "checkpoint-4-epoch-1: checkpoint" in shown
