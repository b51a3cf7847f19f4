"""Getting a model on the page: how it begins, goes on, ends, and what a page opened later shows of it."""

from __future__ import annotations

import asyncio
import threading
import time

import gradio as gr
import pytest
from training_pro.core.errors import ModelError
from training_pro.core.jobs.events import Ended, Fetched, Note, Stage
from training_pro.core.jobs.job import Job
from training_pro.core.jobs.session import Session
from training_pro.interface.base.page_context import Joined
from training_pro.interface.page.download_panel import SUGGESTED, GetModel, GetView, suggestions
from training_pro.tests.fakes import FakeHost

PATIENCE_SECONDS = 20


class Bringing:
    """Brings nothing, and ends when it is told to; `ending` is how."""

    def __init__(self, folder):
        self.go_on = threading.Event()
        self.ending = Ended(outcome="finished", text="a/b is in /models/a_b.", folder=folder / "a_b")

    def get(self, asked):
        if "/" not in asked:
            raise ModelError(f"{asked!r} is no model of the hub.")
        return asked, self._work

    def _work(self, job):
        job.log.append(Note(text="a/b: llama, 1.5 GB"))
        job.log.append(Fetched(done=300_000_000, total=1_500_000_000, speed=1e7))
        while not (self.go_on.wait(0.01) or job.control.stopping):
            pass
        return Ended(outcome="stopped", text="Stopped.") if job.control.stopping else self.ending


@pytest.fixture
def bringing(tmp_path):
    made = Bringing(tmp_path)
    yield made
    made.go_on.set()


@pytest.fixture
def part(bringing):
    """The part of a page; `draw` another one for another page of the same program."""
    return drawn(Joined(FakeHost(), None, Session()), bringing)


def drawn(joined, bringing):
    with gr.Blocks():
        menu = gr.Dropdown([])
        made = GetModel(Joined(joined.host, None, joined.session, menu), bringing.get)
        made.draw()
    return made


def shown(part, enough, act=lambda: None):
    """All that a page which is open is sent, by names, until it is enough; `act` after the first of it."""
    names = {part._go: "go", part._stop: "stop", part._said: "said", part._part: "part"}
    found = []

    async def follow():
        async for updates in part.follow():
            found.extend((names.get(component, "menu"), value) for component, value in updates.items())
            if len(found) <= len(names):
                act()
            if enough(found):
                break

    asyncio.run(asyncio.wait_for(follow(), PATIENCE_SECONDS))
    return found


def last(found, name):
    return [value for key, value in found if key == name][-1]


def wait_for(job):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while job.running and time.monotonic() < deadline:
        time.sleep(0.01)


def test_before_anything_only_get_can_be_pressed(part):
    found = shown(part, len)
    assert "value" not in part._as_asked()
    assert last(found, "go")["interactive"] and not last(found, "stop")["visible"]
    assert "No model is being brought." in part._end()


def test_a_page_sees_how_far_it_is_and_what_came_stands_chosen_in_its_menu(part, bringing, monkeypatch):
    monkeypatch.setattr(FakeHost, "models", lambda self: ["a_b", "toy"])
    assert part._begin(" a/b ") == ""
    during = shown(part, lambda found: "20%" in str(last(found, "said")))
    assert "Getting a/b" in last(during, "said")
    assert "20%: 300 MB of 1.5 GB, 10 MB/s, 2 min 00 s left" in last(during, "said")
    assert last(during, "part") == gr.update(label="Get a model: 20%", open=True)
    assert not last(during, "go")["interactive"] and last(during, "stop")["interactive"]
    chosen = gr.update(choices=["a_b", "toy"], value="a_b")
    found = shown(part, lambda found: ("menu", chosen) in found, bringing.go_on.set)
    assert "It stands in the menu of models above" in last(found, "said") and last(found, "go")["interactive"]
    assert last(found, "part") == gr.update(label="Get a model")


def test_a_page_opened_later_is_told_how_it_ended_and_its_menu_is_left_alone(part, bringing):
    part._begin("a/b")
    bringing.go_on.set()
    wait_for(part._joined.session.latest("download"))
    later = shown(drawn(part._joined, bringing), len)
    assert "menu" not in dict(later) and "a/b is in /models/a_b." in last(later, "said")
    assert part._as_asked()["value"] == "a/b"


def test_also_one_that_came_between_two_looks_stands_chosen_in_the_menu(part, bringing):
    def begin():
        bringing.go_on.set()
        part._begin("a/b")
        wait_for(part._joined.session.latest("download"))

    found = shown(part, lambda found: ("menu", gr.update(choices=["toy"], value="a_b")) in found, begin)
    assert "a/b is in /models/a_b." in last(found, "said")


def test_it_is_stopped_and_what_came_is_told(part):
    part._begin("a/b")
    found = shown(part, lambda found: "tp-fair" in str(last(found, "said")), part._end)
    assert "Stopped." in last(found, "said") and "menu" not in dict(found)


def test_what_cannot_begin_says_why(part):
    assert "Type OWNER/NAME" in part._begin("  ")
    assert "is no model of the hub" in part._begin("gpt2")
    part._begin("a/b")
    assert "Getting a/b goes on. Wait until it is done, or stop it first." in part._begin("c/d")


def test_a_page_that_may_only_look_begins_and_stops_nothing(part):
    part._joined.host.read_only = "Several people use this page."
    assert "Several people use this page." in part._begin("a/b")
    assert "Several people use this page." in part._end()
    assert part._joined.session.latest("download") is None
    assert not last(shown(part, len), "go")["interactive"]


def test_while_it_goes_on_the_news_stand_below_until_the_next_bytes_come():
    job = Job("download", "Getting a/b")
    view = GetView(job, seen=False)
    for text, event in (
        ("Asking the hub", Stage(text="Asking the hub")),
        ("a/b: llama", Note(text="a/b: llama")),
        ("The line broke", Note(text="The line broke")),
    ):
        job.log.append(event)
        view.catch_up()
        assert text in view.html()
    job.log.append(Fetched(done=1, total=4, speed=0))
    view.catch_up()
    assert "The line broke" not in view.html() and "a/b: llama" in view.html()
    assert "25%: 1 bytes of 4 bytes" in view.html()
    job.control.stop()
    assert "Stopping ..." in view.html()
    job.log.append(Ended(outcome="failed", text="There is no model <a/b>."))
    job.log.close()
    assert "tp-bad" in view.html() and "There is no model &lt;a/b&gt;." in view.html()


def test_every_suggestion_is_a_button_that_types_its_name():
    assert all(f'data-tp-box="tp-get-name" data-tp-text="{name}"' in suggestions() for name in SUGGESTED)
