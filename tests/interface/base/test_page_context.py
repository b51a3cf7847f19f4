"""The news of a job, as every part of the page follows them."""

from __future__ import annotations

import asyncio
import threading

import pytest
from training_pro.core.errors import SettingsError
from training_pro.core.host import Standing
from training_pro.core.jobs.events import Ended, Note, Stage
from training_pro.core.jobs.job import Job
from training_pro.core.jobs.session import Session
from training_pro.interface.base import page_context
from training_pro.interface.base.page_context import Joined, news, said_last
from training_pro.tests.fakes import FakeHost


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(page_context, "PAUSE_SECONDS", 0.01)


def job(*events):
    made = Job("answer", "a test")
    for event in events:
        made.log.append(event)
    return made


def test_what_is_made_now_is_known_by_its_name_and_not_by_a_title():
    session, done = Session(), threading.Event()
    page = Joined(FakeHost(), None, session)

    def work(job):
        done.wait(10)
        return Ended(outcome="finished", text="")

    assert not page.trains("story") and not page.trains("")
    made = session.train("story", page.host, work)
    assert (made.kind, made.title) == ("training", "Training 'story'")
    assert page.trains("story") and not page.trains("stories")
    done.set()
    made.log.wait_closed()
    assert not page.trains("story")
    done.clear()
    session.start("answer", "Training 'story'", page.host, work)
    assert not page.trains("story") and not page.trains("")
    done.set()


def test_a_model_that_is_missing_stands_among_what_is_wrong_with_the_form():
    class Empty(FakeHost):
        def standing(self):
            return Standing(problem="No model is loaded.")

    wrong = []
    for host in (FakeHost(), Empty()):
        with pytest.raises(SettingsError) as error:
            Joined(host, None, Session()).parse_settings({"name": "", "data": []})
        wrong.append([sentence.partition(" ")[0] for sentence in error.value.problems])
    assert wrong == [["Name:", "Data:"], ["Name:", "Data:", "No"]]
    assert Joined(Empty(), None, Session()).parse_settings({"name": "a", "data": ["story.txt"]}).what.name == "a"


def test_every_event_comes_once_and_in_order_until_the_job_has_ended():
    told = [Note(text=str(number)) for number in range(200)]
    running = job(*told[:50])

    def work():
        for event in told[50:]:
            running.log.append(event)
        running.log.close()

    async def followed():
        found = []
        async for fresh in news(running):
            assert fresh
            found += fresh
            if len(found) == 50:
                threading.Thread(target=work).start()
        return found

    assert asyncio.run(followed()) == told


def test_of_a_job_that_has_ended_all_is_told_at_once():
    over = job(Stage(text="one"), Ended(outcome="finished", text="done"))
    over.log.close()

    async def all_of(stream):
        return [fresh async for fresh in stream]

    assert asyncio.run(all_of(news(over))) == [over.log.since(0)]
    silent = job()
    silent.log.close()
    assert asyncio.run(all_of(news(silent))) == []


def test_the_last_that_tells_something_is_said_and_stays():
    said = said_last([Stage(text="one"), Stage(text="two"), Note(text="n")], "")
    assert "two ..." in said and "one" not in said
    assert said_last([Note(text="n")], said) == said
    assert "tp-bad" in said_last([Ended(outcome="failed", text="no")], said)
