"""The page context, following the events of a job, the Stop button, and notices on outdated results."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing
from dataclasses import replace

import gradio as gr
import pytest
from training_pro.core.jobs import JobEnded, Note, Request, Session
from training_pro.interface import base
from training_pro.tests.fakes import FakeHost
from training_pro.tests.interface.visit import Visit


@pytest.fixture
def context():
    return base.PageContext(FakeHost(), None, Session())


def test_the_current_training_is_identified_by_name_and_not_by_title(context):
    finish = threading.Event()
    work = lambda job: finish.wait(60) and JobEnded(outcome="finished", text="")  # noqa: E731
    assert not context.is_training("story") and not context.is_training("")
    training = context.session.train("story", context.host, work)
    assert context.is_training("story") and not context.is_training("stories")
    finish.set()
    training.log.wait_closed()
    assert not context.is_training("story")
    finish.clear()
    context.session.start("answer", "Training 'story'", context.host, work)
    assert not context.is_training("story") and not context.is_training("")
    finish.set()


def test_every_event_is_yielded_once_and_in_order_until_the_end(context):
    events, go_on = [Note(text=str(number)) for number in range(200)], threading.Event()
    end = JobEnded(outcome="finished", text="done")

    def work(job):
        for number, event in enumerate(events):
            if number == 50:
                go_on.wait(60)
            job.log.append(event)
        return end

    async def followed():
        received = []
        async for _, new in context.follow_job("answer", "a test", work, "Begun"):
            received += new
            go_on.set()
        return received

    assert asyncio.run(followed()) == [*events, end]


def test_every_stream_yields_without_news_too_because_gradio_notices_a_closed_page_only_then(context, monkeypatch):
    monkeypatch.setattr(base.page_context, "KEEPALIVE_SECONDS", 0.05)
    release = threading.Event()

    async def first(count, stream):
        async with aclosing(stream):
            return [await anext(stream) for _ in range(count)]

    try:
        work = lambda _: release.wait() and JobEnded(outcome="finished")  # noqa: E731
        updates = asyncio.run(first(4, context.follow_job("model", "Attaching", work)))
        assert all("Waiting for the model" in status for status, _ in updates)
        assert [events for _, events in updates[2:]] == [[]] * 2
        assert asyncio.run(first(3, base.follow_changes(lambda: "as before"))) == [None] * 3
    finally:
        release.set()


def test_stop_is_enabled_for_jobs_of_its_kind_and_follows_them_to_their_end(context):
    def draw():
        working, said = gr.Textbox(elem_id="working"), gr.HTML(elem_id="said")
        base.StopButton(replace(context, working=working), "answer", "stop").connect(said)

    def work(job):
        while not job.control.asked(Request.STOP):
            threading.Event().wait(0.01)
        return JobEnded(outcome="stopped", text="That was all.")

    page = Visit(draw)
    assert page.named["stop"].interactive is False and page.press("stop")["said"] == ""
    for kind in ("", "model", "answer"):
        enabled = page.press("working", "change", working=kind)["stop"]["interactive"]
        assert enabled is (kind == "answer")
    context.session.start("answer", "Generating text", context.host, work)
    stopping, end = page.steps("stop")
    assert "Stopping." in stopping["said"] and "That was all." in end["said"]
    context.host.read_only_reason = "Only the owner may train."
    assert page.press("working", "change", working="answer")["stop"]["interactive"] is False


CHECKED = base.ResultInputs({"rank": 32, "learning_rate": "3e-4", "data": ["a.txt"]}, "toy")


def test_a_result_is_outdated_if_a_new_one_could_differ():
    for values, model, differs in (
        ({}, "toy", False),
        ({"learning_rate": "0.0003"}, "toy", False),
        ({"rank": 64}, "toy", True),
        ({"rank": "a word"}, "toy", True),
        ({"data": []}, "toy", True),
        ({}, "another", True),
        ({}, "", True),
    ):
        assert CHECKED.differs(base.ResultInputs({**CHECKED.values, **values}, model)) is differs
    assert base.markup.outdated_style([]) == ""
    for kind in ("check", "example", "probe"):
        assert f"tp-outdated-{kind}" in base.markup.outdated_notice(
            kind
        ) and f"tp-outdated-{kind} " in base.markup.outdated_style([kind])
