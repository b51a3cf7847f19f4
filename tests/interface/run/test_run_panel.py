"""Below the run: its buttons, the queue, the report of Check, and browsing the examples."""

from __future__ import annotations

import json
import re
import threading
from dataclasses import replace
from functools import partial
from pathlib import Path
from types import SimpleNamespace

import gradio as gr
import pytest
from training_pro.core.host import DeviceMemory, ModelCard, OwnProcess
from training_pro.core.jobs import AutoStart, JobEnded, LiveSettingsChanged, Request, RunPlanned, Session
from training_pro.data.prepare import check_datasets
from training_pro.data.report import DatasetReport
from training_pro.data.report.estimates import MemoryEstimate
from training_pro.interface.base import PageContext
from training_pro.interface.run import queue_view, report_view
from training_pro.interface.train import TrainTab
from training_pro.records.queue import Queue
from training_pro.settings.live_settings import LiveSettings
from training_pro.settings.parsing import training_settings
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab
from training_pro.tests.rowing import chat, family, prepare_rows


class Engine:
    """An engine with the real Check, but without a model."""

    def check(self, settings, host, *, show):
        tokenizer = family("ChatML")
        card = ModelCard("toy", {}, tokenizer.tokenizer, "auto")
        return check_datasets(settings, host.folders, card, tokenizer, lambda text, share: None, show=show)


@pytest.fixture(scope="module")
def context(tmp_path_factory):
    folders = make_folders(tmp_path_factory.mktemp("page"))
    sections = (f"The {word} slept.\n\n\n" for word in ("cat", "dog", "cow", "cat"))
    (folders.datasets / "a.txt").write_text("".join(sections), encoding="utf-8")
    return PageContext(FakeHost(folders=folders), Engine(), Session())


@pytest.fixture(scope="module")
def page(context):
    return open_tab(TrainTab, context)


@pytest.fixture
def running(context):
    """A run that ends when the test does."""
    finish = threading.Event()
    work = lambda job: finish.wait(60) and JobEnded(outcome="finished", text="")  # noqa: E731
    job = context.session.train("night", context.host, work)
    yield job
    finish.set()
    job.log.wait_closed()


def enabled(page):
    page.until("again")
    shown = page.press("version", "change")
    names = ("stop", "pause", "save", "sample", "evaluate", "wind-down", "halve", "free", "extend", "throw-away")
    return [name for name in names if shown[name].get("interactive")]


def test_epochs_are_added_to_a_run_and_one_that_is_stopping_can_only_be_discarded(page, running):
    for epochs in (0, 0.001, -1, None, 1001, float("inf"), float("nan")):
        assert "More epochs: " in page.press("extend", more_epochs=epochs)["answer"]
    assert running.control.pending == frozenset()
    assert [page.press("extend", more_epochs=epochs)["answer"] for epochs in (0.05, 2)] == ["", ""]
    assert running.control.take_epochs() == 2.05
    assert len(enabled(page)) > 6
    page.press("stop")
    assert running.control.asked(Request.STOP) and enabled(page) == ["throw-away"]
    running.control.ask(Request.DISCARD)
    assert enabled(page) == []


def test_apply_sends_only_the_rules_that_were_changed_and_the_chat_is_free_of_a_run_elsewhere(page, running):
    """The run may have other rules than the form, such as one from the queue."""
    of_run = training_settings({"name": "a", "data": ["a.txt"], "stop_at_loss": 1.5, "save_every": 7})
    running.control.live = LiveSettings(of_run.saving, of_run.stopping)
    page.press("live", save_every=9)
    page.press("live", save_every=9, stop_at_epoch=3)
    live = running.control.live.values()
    assert (live["stop_at_loss"], live["save_every"], live["stop_at_epoch"]) == (1.5, 9, 3)
    assert page.press("version", "change")["host-busy"] == "yes"
    # A rule that the run can't keep would make it a run that can't resume.
    plan = {"steps": 8, "steps_per_epoch": 4, "first_step": 0, "rates": (), "settings": of_run.values()}
    running.log.append(RunPlanned(name="night", model="tiny", **plan))
    running.log.append(LiveSettingsChanged(step=1, changes={"rate_factor": (1.0, 0.5)}))
    page.press("live", save_every=11)
    assert running.control.live.values()["save_every"] == 11
    assert "there is no validation split" in str(page.press("live", early_stopping=3))
    assert running.control.live.values()["early_stopping"] == 0
    page.fill(early_stopping=0)


def queue_of(count):
    queue, values = (
        Queue(),
        {"name": "<b>", "data": ["story.txt", "chats.jsonl:50"], "epochs": 2.0, "max_steps": 0},
    )
    for number in range(count):
        queue = queue.with_run(f"<b>{number}", "tiny", values, 1300)
    return queue


def test_a_row_of_the_queue_names_its_run_and_has_buttons():
    html = partial(queue_view.queue_html, auto_start=AutoStart(), training=True)
    page = html(queue_of(2))
    assert "Queue: 2 wait" in page and "data-tp-set" in page and html(Queue()) == ""
    assert "<b>&lt;b&gt;0</b> story.txt, chats.jsonl:50; 1,300 steps in 2 epochs; tiny" in page
    assert 'data-tp-queue="away 2" title="Remove: &lt;b&gt;1"' in page
    assert "Skipped: &lt;why&gt;" in html(queue_of(1).with_skip_reasons({1: "<why>"}))
    queue = queue_of(1)
    page = html(queue.with_started(queue.waiting[0]).with_ended(1, "failed", "Out of <memory>."))
    assert "Load into form" in page and "&lt;b&gt;0: failed. Out of &lt;memory&gt;." in page


def test_the_queue_says_what_happens_next():
    def said(*, training):
        return queue_view.queue_html(queue_of(1), auto_start, training=training)

    auto_start = AutoStart()
    assert "After a restart, the queue does not start by itself" in said(training=False)
    auto_start.enable()
    assert "When the current run ends or fails, the next" in said(training=True)
    assert "after the next run that you start, or right away" in said(training=False)
    auto_start.disable("Stopped by hand.")
    assert "Stopped by hand. To continue the queue when the current run ends" in said(training=True)
    assert "Stopped by hand. Press Resume queue." in said(training=False)
    auto_start.start_now()
    assert "as soon as the model is free" in said(training=False)


@pytest.mark.parametrize(("rows", "all_fit"), [(100, True), (20, False)])
def test_a_report_has_figures_and_suggestions_and_those_that_fit_are_folded(tmp_path, rows, all_fit):
    data = {"rows.jsonl": [chat("Hi", f"No{' no' * (n % 9)}.") for n in range(rows)]}
    report = prepare_rows(tmp_path, family("ChatML"), data).report
    page, changes = report_view.html(report), [each for each in report.suggestions if not each.keep]
    assert "Check: ready" in page and "trained tokens per epoch" in page and "&lt;" not in page
    assert f"all {rows} rows end with a stop token" in page and page.count("<rect") == len(report.lengths.counts)
    assert (not changes) == all_fit
    assert f"<summary>{7 - len(changes)} {'other ' if changes else ''}settings are fine" in page
    assert all_fit or re.search(r'data-tp-set="{&#34;epochs&#34;: [\d.]+}">Use \d+</button>', page)


def test_memory_is_that_of_the_process_that_trains_and_a_chat_that_makes_room_is_named(context):
    estimate = MemoryEstimate(*[10**9] * 7)
    engine = SimpleNamespace(check_start=lambda *_, **more: DatasetReport(memory=estimate, free_memory=8 * 10**9))
    host = replace(context.host, own_process=OwnProcess(Path("python"), "m", unloads_chat=True))
    host.memory = lambda: DeviceMemory("CPU", 10**9, 2 * 10**9)
    own = PageContext(host, engine, Session())
    answer = open_tab(TrainTab, own).press("check")["answer"]
    assert "8 GB is available." in answer and "It is unloaded for the run" in answer
    assert "1 of 2 GB" not in own.model_line()
    host.own_process = None
    assert "1 of 2 GB of memory in use (CPU)" in own.model_line()


def browse(page, direction, number, holding="", **values):
    values = {"data": ["a.txt"], "hard_cut": r"\n\n\n", **values}
    page.fill(leafing_number=number, leafing_holding=holding, **values)
    shown = page.press(f"leafing-{direction}")
    return shown["leafing-number"], " ".join(re.sub("<[^>]*>", " ", shown["leafing-said"]).split())


def test_a_pair_is_switched_and_dropped_and_both_are_taken_back(page, context):
    pairs = [{"prompt": f"Q{n}:", "chosen": f" yes {n}", "rejected": f" no {n}"} for n in range(2)]
    (context.host.folders.datasets / "p.jsonl").write_text("\n".join(map(json.dumps, pairs)), encoding="utf-8")
    values = {"data": ["p.jsonl"], "objective": "dpo"}
    browse(page, "next", 1, **values)
    for button, decided, first in (
        ("switch", "Example 2 of 2, switched by you", "no 1"),
        ("switch", "Example 2 of 2", "yes 1"),
        ("drop", "Example 2 of 2, dropped by you", "yes 1"),
        ("drop", "Example 2 of 2", "yes 1"),
    ):
        html = browse(page, button, 2, **values)[1]
        assert decided in html and ("by you" in html) == ("by you" in decided)
        assert html.index(first) < html.index("With the rejected reply:")
    page.fill(objective="next_token")


def test_examples_are_browsed_in_both_directions_and_found_by_a_text(page):
    at, html = browse(page, "show", 1)
    assert at == 1 and "Example 1 of 4" in html and "The cat slept." in html
    at, html = browse(page, "next", 1)
    assert at == 2 and "The dog slept." in html
    assert browse(page, "next", 1, " CAT ")[0] == 4 and browse(page, "before", 4, "cat")[0] == 1
    assert "&#39;dog&#39; was not found from example 3 on" in browse(page, "next", 2, "dog")[1]
    assert "&#39;dog&#39; was not found in examples 1 to 1" in browse(page, "before", 2, "dog")[1]
    at, html = browse(page, "next", 4)
    assert at == gr.update() and "There is no example 5. The data has 4 examples." in html
