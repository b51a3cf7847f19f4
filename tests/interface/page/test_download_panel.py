"""Downloading a model on the page: start, progress, end, and a page that is opened later."""

from __future__ import annotations

import asyncio
import threading
import time

import gradio as gr
import pytest
from training_pro.core.errors import ModelError
from training_pro.core.jobs import DownloadProgress, Job, JobEnded, Note, Request, Session, Stage
from training_pro.interface.base import PageContext
from training_pro.interface.page.download_panel import (
    SUGGESTED_MODELS,
    DownloadPanel,
    DownloadView,
    suggestion_buttons,
)
from training_pro.tests.fakes import FakeHost

PATIENCE_SECONDS = 20


class FakeDownload:
    """Downloads nothing, and ends with `ending` when `go_on` is set."""

    def __init__(self, folder):
        self.go_on = threading.Event()
        self.ending = JobEnded(outcome="finished", text="a/b is in /models/a_b.", folder=folder / "a_b")

    def get(self, asked):
        if "/" not in asked:
            raise ModelError(f"{asked!r} is no model of the hub.")
        return asked, self._work

    def _work(self, job):
        job.log.append(Note(text="a/b: llama, 1.5 GB"))
        job.log.append(DownloadProgress(done=300_000_000, total=1_500_000_000, speed=1e7))
        while not (self.go_on.wait(0.01) or job.control.asked(Request.STOP)):
            pass
        return JobEnded(outcome="stopped", text="Stopped.") if job.control.asked(Request.STOP) else self.ending


@pytest.fixture
def download(tmp_path):
    download = FakeDownload(tmp_path)
    yield download
    download.go_on.set()


@pytest.fixture
def panel(download):
    """The panel of one page; `draw_panel` makes another one for another page of the same program."""
    return draw_panel(PageContext(FakeHost(), None, Session()), download)


def draw_panel(context, download):
    with gr.Blocks():
        menu = gr.Dropdown([])
        panel = DownloadPanel(PageContext(context.host, None, context.session, menu), download.get)
        panel.draw()
    return panel


def updates_until(panel, enough, act=lambda: None):
    """All updates that an open page receives, by name, until `enough`; `act` is called after the first ones."""
    names = {
        panel._get_button: "get",
        panel._stop_button: "stop",
        panel._status: "status",
        panel._accordion: "part",
    }
    seen = []

    async def follow():
        async for updates in panel.follow():
            seen.extend((names.get(component, "menu"), value) for component, value in updates.items())
            if len(seen) <= len(names):
                act()
            if enough(seen):
                break

    asyncio.run(asyncio.wait_for(follow(), PATIENCE_SECONDS))
    return seen


def last(updates, name):
    return [value for key, value in updates if key == name][-1]


def wait_for(job):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job.running and time.monotonic() < deadline:
        time.sleep(0.01)


def test_before_a_download_only_get_can_be_pressed(panel):
    updates = updates_until(panel, len)
    assert "value" not in panel._fill_name()
    assert last(updates, "get")["interactive"] and not last(updates, "stop")["visible"]
    assert "No download is running." in panel._stop_download()


def test_a_page_shows_the_progress_and_selects_the_new_model_in_its_menu(panel, download, monkeypatch):
    monkeypatch.setattr(FakeHost, "models", lambda self: ["a_b", "toy"])
    assert panel._start_download(" a/b ") == ""
    during = updates_until(panel, lambda updates: "20%" in str(last(updates, "status")))
    assert "Downloading a/b" in last(during, "status")
    assert "20%: 300 MB of 1.5 GB, 10 MB/s, 2 min 00 s left" in last(during, "status")
    assert last(during, "part") == gr.update(label="Download a model: 20%", open=True)
    assert not last(during, "get")["interactive"] and last(during, "stop")["interactive"]
    chosen = gr.update(choices=["a_b", "toy"], value="a_b")
    updates = updates_until(panel, lambda updates: ("menu", chosen) in updates, download.go_on.set)
    assert (
        "It is selected in the model menu above" in last(updates, "status") and last(updates, "get")["interactive"]
    )
    assert last(updates, "part") == gr.update(label="Download a model")


def test_a_page_opened_later_shows_the_end_and_keeps_its_selection(panel, download):
    panel._start_download("a/b")
    download.go_on.set()
    wait_for(panel._context.session.latest("download"))
    later = updates_until(draw_panel(panel._context, download), len)
    assert "menu" not in dict(later) and "a/b is in /models/a_b." in last(later, "status")
    assert panel._fill_name()["value"] == "a/b"


def test_a_model_that_arrives_between_two_polls_is_selected_in_the_menu(panel, download):
    def begin():
        download.go_on.set()
        panel._start_download("a/b")
        wait_for(panel._context.session.latest("download"))

    updates = updates_until(
        panel, lambda updates: ("menu", gr.update(choices=["toy"], value="a_b")) in updates, begin
    )
    assert "a/b is in /models/a_b." in last(updates, "status")


def test_a_stopped_download_says_so(panel):
    panel._start_download("a/b")
    updates = updates_until(panel, lambda updates: "tp-fair" in str(last(updates, "status")), panel._stop_download)
    assert "Stopped." in last(updates, "status") and "menu" not in dict(updates)


def test_a_download_that_cannot_start_says_why(panel):
    assert "Enter the OWNER/NAME" in panel._start_download("  ")
    assert "is no model of the hub" in panel._start_download("gpt2")
    panel._start_download("a/b")
    assert "Downloading a/b is running. Wait until it is done, or stop it first." in panel._start_download("c/d")


def test_a_read_only_page_starts_and_stops_nothing(panel):
    panel._context.host.read_only_reason = "Several people use this page."
    assert "Several people use this page." in panel._start_download("a/b")
    assert "Several people use this page." in panel._stop_download()
    assert panel._context.session.latest("download") is None
    assert not last(updates_until(panel, len), "get")["interactive"]


def test_messages_stand_below_the_progress_until_the_next_bytes_arrive():
    job = Job("download", "Downloading a/b")
    view = DownloadView(job, seen=False)
    for text, event in (
        ("Asking the hub", Stage(text="Asking the hub")),
        ("a/b: llama", Note(text="a/b: llama")),
        ("The line broke", Note(text="The line broke")),
    ):
        job.log.append(event)
        view.catch_up()
        assert text in view.html()
    job.log.append(DownloadProgress(done=1, total=4, speed=0))
    view.catch_up()
    assert "The line broke" not in view.html() and "a/b: llama" in view.html()
    assert "25%: 1 bytes of 4 bytes" in view.html()
    job.control.ask(Request.STOP)
    assert "Stopping ..." in view.html()
    job.log.append(JobEnded(outcome="failed", text="There is no model <a/b>."))
    job.log.close()
    assert "tp-bad" in view.html() and "There is no model &lt;a/b&gt;." in view.html()


def test_every_suggestion_is_a_button_that_fills_in_its_name():
    assert all(
        f'data-tp-box="tp-get-name" data-tp-text="{name}"' in suggestion_buttons() for name in SUGGESTED_MODELS
    )
