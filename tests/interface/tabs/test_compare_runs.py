"""Two runs beside each other: what differs, and what must not be compared."""

from __future__ import annotations

import pytest
from training_pro.core.jobs.session import Session
from training_pro.interface.base.page_context import Joined
from training_pro.interface.tabs.compare_runs import beside
from training_pro.interface.tabs.runs_tab import RunsTab
from training_pro.records.folder import inventory
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import FINISHED, LOG, made

ASIDE = {"epoch": 1.0, "eval_perplexity": 1.0, "eval_accuracy": 0.5, "eval_by_source": {}, "eval_tokens": 9}


def graph(loss, *, kept_aside="a"):
    steps = [
        {"current_steps": s, "loss": loss - s / 8, "smoothed_loss": loss - s / 8, "epoch": s / 8, "seconds": 30}
        for s in range(1, 9)
    ]
    more = {**ASIDE, "eval_seconds": 1.0, "context_gain": None, "why": "end", "kept_aside": kept_aside}
    return [
        *steps,
        {"current_steps": 4, "eval_loss": loss, **more},
        {"current_steps": 8, "eval_loss": 9.0, **more},
    ]


@pytest.fixture
def two(tmp_path):
    """Two runs on disk; what is said of them, with what the second is to be instead."""
    folders = made_folders(tmp_path)

    def said(**more):
        first = {
            "training_graph.json": graph(3.0),
            "training_parameters.json": {"name": "a", "rank": 8, "data": ["x"]},
        }
        second = {
            "training_graph.json": graph(2.0),
            "training_parameters.json": {"name": "b", "rank": 64, "data": ["x"], "schedule": "cosine"},
        }
        places = [
            made(folders.loras, "a", {**FINISHED, **first}),
            made(folders.loras, "b", {**FINISHED, **second, **more}),
        ]
        return beside(*(inventory.one(place, folders) for place in places))

    said.folders = folders
    return said


def row(*cells):
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def test_figures_and_what_differs_stand_side_by_side(two):
    shown = two()
    assert row("best loss kept aside", "3.0000 at step 4", "2.0000 at step 4") in shown
    assert row("spent on training", "4 min 00 s", "4 min 00 s") in shown
    assert row("LoRA Rank", "8", "64") in shown
    assert "cosine" in shown
    assert ">Name<" not in shown and ">Data<" not in shown
    assert shown.count("<svg") == 2
    assert "cannot be compared" not in shown and "not known" not in shown


def test_what_must_not_be_compared_is_said(two):
    other_part = {"training_graph.json": graph(2.0, kept_aside="b")}
    assert "tested on different parts" in two(**other_part)
    assert "on different models" in two(**{"training_log.json": {**LOG, "base_model_name": "another"}})
    unknown = two(**{"training_parameters.json": "no JSON"})
    assert "Which settings b was made with is not known." in unknown
    assert "LoRA Rank" not in unknown


def test_on_the_tab_two_different_ones_have_to_be_chosen(two):
    two()
    tab = RunsTab(Joined(FakeHost(folders=two.folders), None, Session()))
    tab._chosen, tab._other = "chosen", "other"

    def shown(chosen, other):
        return tab._both({"chosen": chosen, "other": other})

    assert "<h4>a and b</h4>" in shown("a/checkpoint-8-epoch-2", "b")
    assert shown("a", "a/checkpoint-8-epoch-2") == shown("a", "no other run") == shown("", "b") == ""
