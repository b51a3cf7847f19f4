"""Comparing two runs: settings that differ, and figures that must not be compared."""

from __future__ import annotations

import pytest
from training_pro.core.jobs import Session
from training_pro.interface.base import Form, PageContext
from training_pro.interface.tabs import RunsTab
from training_pro.interface.tabs.compare_runs import comparison_html
from training_pro.records.folder import inventory
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import FINISHED, LOG, write_files

VALIDATION = {"epoch": 1.0, "eval_perplexity": 1.0, "eval_accuracy": 0.5, "eval_by_source": {}, "eval_tokens": 9}


def graph(loss, *, kept_aside="a"):
    steps = [
        {"current_steps": s, "loss": loss - s / 8, "smoothed_loss": loss - s / 8, "epoch": s / 8, "seconds": 30}
        for s in range(1, 9)
    ]
    more = {**VALIDATION, "eval_seconds": 1.0, "context_gain": None, "why": "end", "kept_aside": kept_aside}
    return [
        *steps,
        {"current_steps": 4, "eval_loss": loss, **more},
        {"current_steps": 8, "eval_loss": 9.0, **more},
    ]


@pytest.fixture
def compare_two(tmp_path):
    """Compares two runs on disk; keyword arguments replace files of the second run."""
    folders = make_folders(tmp_path)

    def compare(**more):
        first = {
            "training_graph.json": graph(3.0),
            "training_parameters.json": {"name": "a", "rank": 8, "data": ["x"]},
        }
        second = {
            "training_graph.json": graph(2.0),
            "training_parameters.json": {"name": "b", "rank": 64, "data": ["x"], "schedule": "cosine"},
        }
        run_folders = [
            write_files(folders.loras, "a", {**FINISHED, **first}),
            write_files(folders.loras, "b", {**FINISHED, **second, **more}),
        ]
        return comparison_html(*(inventory.read_entry(folder, folders) for folder in run_folders))

    compare.folders = folders
    return compare


def row(*cells):
    return "<tr>" + "".join(f"<td>{cell}</td>" for cell in cells) + "</tr>"


def test_figures_and_different_settings_stand_side_by_side(compare_two):
    html = compare_two()
    assert row("best validation loss", "3.0000 at step 4", "2.0000 at step 4") in html
    assert row("training time", "4 min 00 s", "4 min 00 s") in html
    assert row("LoRA Rank", "8", "64") in html
    assert "cosine" in html
    assert ">Name<" not in html and ">Data<" not in html
    assert html.count("<svg") == 2
    assert "be compared" not in html and "unknown" not in html


def test_figures_that_must_not_be_compared_are_named(compare_two):
    other_part = {"training_graph.json": graph(2.0, kept_aside="b")}
    assert "used different validation splits" in compare_two(**other_part)
    assert "use different models" in compare_two(**{"training_log.json": {**LOG, "base_model_name": "another"}})
    unknown = compare_two(**{"training_parameters.json": "no JSON"})
    assert "The settings that b was trained with are unknown." in unknown
    assert "LoRA Rank" not in unknown


def test_the_tab_compares_only_two_different_runs(compare_two):
    compare_two()
    tab = RunsTab(PageContext(FakeHost(folders=compare_two.folders), None, Session()), Form())
    tab._chosen, tab._other = "chosen", "other"

    def comparison(chosen, other):
        return tab._show_comparison({"chosen": chosen, "other": other})

    assert "<h4>a and b</h4>" in comparison("a/checkpoint-8-epoch-2", "b")
    assert comparison("a", "a/checkpoint-8-epoch-2") == comparison("a", "") == comparison("", "b") == ""
