"""The page context, and following the events of a job."""

from __future__ import annotations

import asyncio
import threading
from contextlib import aclosing

import pytest
from training_pro.core.errors import BusyError, SettingsError
from training_pro.core.host import ModelStatus
from training_pro.core.jobs import Job, JobEnded, Note, Session, Stage
from training_pro.interface.base import page_context
from training_pro.interface.base.page_context import (
    PageContext,
    follow_changes,
    follow_events,
    follow_refusal,
    latest_status,
)
from training_pro.tests.fakes import FakeHost


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(page_context, "POLL_SECONDS", 0.01)
    monkeypatch.setattr(page_context.LOOKS, "shortest", 0.01)


def job(*events):
    new_job = Job("answer", "a test")
    for event in events:
        new_job.log.append(event)
    return new_job


def test_the_current_training_is_identified_by_name_and_not_by_title():
    session, finish = Session(), threading.Event()
    page = PageContext(FakeHost(), None, session)

    def work(job):
        finish.wait(10)
        return JobEnded(outcome="finished", text="")

    assert not page.is_training("story") and not page.is_training("")
    training = session.train("story", page.host, work)
    assert (training.kind, training.title) == ("training", "Training 'story'")
    assert page.is_training("story") and not page.is_training("stories")
    finish.set()
    training.log.wait_closed()
    assert not page.is_training("story")
    finish.clear()
    session.start("answer", "Training 'story'", page.host, work)
    assert not page.is_training("story") and not page.is_training("")
    finish.set()


def test_a_missing_model_is_one_of_the_problems_of_the_form():
    class Empty(FakeHost):
        def model_status(self):
            return ModelStatus(problem="No model is loaded.")

    problems = []
    for host in (FakeHost(), Empty()):
        with pytest.raises(SettingsError) as error:
            PageContext(host, None, Session()).parse_settings({"name": "", "data": []})
        problems.append([sentence.partition(" ")[0] for sentence in error.value.problems])
    assert problems == [["Name:", "Dataset:"], ["Name:", "Dataset:", "No"]]
    assert (
        PageContext(Empty(), None, Session()).parse_settings({"name": "a", "data": ["story.txt"]}).what.name == "a"
    )


def test_every_event_is_yielded_once_and_in_order():
    events = [Note(text=str(number)) for number in range(200)]
    running = job(*events[:50])

    def work():
        for event in events[50:]:
            running.log.append(event)
        running.log.close()

    async def followed():
        received = []
        async for new_events in follow_events(running):
            assert new_events
            received += new_events
            if len(received) == 50:
                threading.Thread(target=work).start()
        return received

    assert asyncio.run(followed()) == events


def test_all_events_of_an_ended_job_are_yielded_at_once():
    ended = job(Stage(text="one"), JobEnded(outcome="finished", text="done"))
    ended.log.close()

    async def all_of(stream):
        return [events async for events in stream]

    assert asyncio.run(all_of(follow_events(ended))) == [ended.log.since(0)]
    silent = job()
    silent.log.close()
    assert asyncio.run(all_of(follow_events(silent))) == []


async def first(count, stream):
    async with aclosing(stream):
        return [await anext(stream) for _ in range(count)]


def test_every_stream_yields_without_news_too_because_gradio_notices_a_closed_page_only_then(monkeypatch):
    monkeypatch.setattr(page_context, "KEEPALIVE_SECONDS", 0.1)
    session, release = Session(), threading.Event()
    session.start(
        "merge", "Merging", FakeHost(), lambda _: (release.wait(), JobEnded(outcome="finished", text=""))[1]
    )
    try:
        running = session.current
        assert asyncio.run(first(3, follow_changes(lambda: "as before"))) == [None] * 3
        assert asyncio.run(first(4, follow_events(running)))[1:] == [[]] * 3
        refusals = asyncio.run(first(4, follow_refusal(session, BusyError("Busy."))))
        assert len(set(refusals)) == 1 and "Busy." in refusals[0]
    finally:
        release.set()


def test_the_latest_status_is_kept_until_a_new_one():
    status = latest_status([Stage(text="one"), Stage(text="two"), Note(text="n")], "")
    assert "two ..." in status and "one" not in status
    assert latest_status([Note(text="n")], status) == status
    assert "tp-bad" in latest_status([JobEnded(outcome="failed", text="no")], status)
