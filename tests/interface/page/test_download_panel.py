"""Downloading a model on the page: start, progress, end, and a page that is opened later."""

from __future__ import annotations

import threading

import gradio as gr
import pytest
from training_pro.core.errors import ModelError
from training_pro.core.jobs import DownloadProgress, JobEnded, Request, Session
from training_pro.interface.base import PageContext
from training_pro.interface.page import page as standalone
from training_pro.tests.fakes import FakeHost
from training_pro.tests.interface.visit import Visit


class Hub:
    """Downloads nothing, and ends when `go_on` is set."""

    def __init__(self, folder):
        self.go_on, self.folder = threading.Event(), folder

    def get(self, asked):
        if "/" not in asked:
            raise ModelError(f"{asked!r} is no model of the hub.")
        return asked, self.work

    def work(self, job):
        job.log.append(DownloadProgress(done=300_000_000, total=1_500_000_000, speed=1e7))
        while not (self.go_on.wait(0.01) or job.control.asked(Request.STOP)):
            pass
        if job.control.asked(Request.STOP):
            return JobEnded(outcome="stopped", text="Stopped.")
        return JobEnded(outcome="finished", text="a/b is in /models/a_b.", folder=self.folder / "a_b")


@pytest.fixture
def hub(tmp_path):
    hub = Hub(tmp_path)
    yield hub
    hub.go_on.set()


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def host():
    return FakeHost()


@pytest.fixture
def page(hub, session, host):
    host.download_job = hub.get

    def draw():
        menu = gr.Dropdown([], elem_id="tp-model")
        standalone.DownloadPanel(host, PageContext(host, None, session, menu))

    return Visit(draw)


def has(part, words):
    return lambda shown: words in str(shown.get(part))


def test_a_page_shows_the_progress_and_selects_the_new_model_in_its_menu(page, hub, session):
    before = page.until("Follow again")
    assert before["get"]["interactive"] and not before["get-stop"]["visible"]
    assert "No download is running." in page.press("get-stop")["get-refused"]
    assert page.press("get", get_name=" a/b ")["get-refused"] == ""
    during = page.until("Follow again", has("get-said", "20%"))
    assert "20%: 300 MB of 1.5 GB, 10 MB/s, 2 min 00 s left" in during["get-said"]
    assert during["get-part"] == gr.update(label="Download a model: 20%", open=True)
    assert not during["get"]["interactive"] and during["get-stop"]["interactive"]
    assert "Downloading a/b is running." in page.press("get", get_name="c/d")["get-refused"]
    ended = page.until("Follow again", has("model", "a_b"), hub.go_on.set)
    assert ended["model"] == gr.update(choices=["toy"], value="a_b") and ended["get"]["interactive"]
    assert "It is selected in the model menu above" in ended["get-said"]
    later = page.until("Follow again")
    assert "model" not in later and "a/b is in /models/a_b." in later["get-said"], "its own selection stays"
    assert page.press("Filling in the model's name", "load")["get-name"]["value"] == "a/b"


def test_a_download_that_cannot_start_says_why(page, session, host):
    assert "Enter the OWNER/NAME" in page.press("get", get_name="  ")["get-refused"]
    assert "is no model of the hub" in page.press("get", get_name="gpt2")["get-refused"]
    host.read_only_reason = "Several people use this page."
    for button in ("get", "get-stop"):
        assert "Several people use this page." in page.press(button, get_name="a/b")["get-refused"]
    assert session.latest("download") is None and not page.until("Follow again")["get"]["interactive"]
