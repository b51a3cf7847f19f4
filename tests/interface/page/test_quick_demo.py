"""The first look: two minutes that end by themselves, on every page; and what is said while a job goes on."""

from __future__ import annotations

import asyncio
import threading
import time

import gradio as gr
import pytest
from training_pro.core.jobs.events import Ended
from training_pro.core.jobs.job import Job
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base.page_context import Joined
from training_pro.interface.page.quick_demo import FirstLook, Look, LookView

PATIENCE_SECONDS = 60
SHORT = 0.05  # as against the two minutes


@pytest.fixture
def look(place):
    made = FirstLook(Joined(place.host(), PeftEngine(), Session()), seconds=SHORT)
    with gr.Blocks():
        made.draw()
    return made


def pressed(look, prompt="The keeper of the"):
    """What is said at once."""

    async def first():
        return await anext(look.press(prompt))

    return asyncio.run(first())


def shown(look):
    """What a page that is opened now shows at once: by names."""

    async def first():
        return await anext(look.follow())

    names = {look._go: "go", look._said: "said", look._without: "without", look._with: "with"}
    return {names[part]: value for part, value in asyncio.run(first()).items()}


def wait_for(found, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not found():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_a_page_opened_later_shows_the_run_its_end_and_both_answers(look):
    assert shown(look) == {"go": gr.update(interactive=True)}
    assert pressed(look) == ""
    during = shown(look)
    assert during["go"]["interactive"] is False and "Training &#x27;first-look&#x27;" in during["said"]
    wait_for(lambda: look._look.answer is not None and not look._look.answer.running, "both answers")
    after = shown(look)
    assert after["go"]["interactive"] is True
    assert after["without"] and after["with"]
    assert look._asked() == "The keeper of the"
    assert "The two minutes are over at step" in after["said"] and "tp-fair" not in after["said"]
    end = look._look.run.end
    assert end.outcome == "finished" and "since the two minutes are over" in end.text
    assert end.time_over


@pytest.mark.parametrize("over", [True, False])
def test_that_its_time_is_over_is_told_by_the_end_and_not_by_its_words(over):
    run = Job("training", "Training 'first-look'")
    folder = "somewhere" if over else "the two minutes are over"
    run.log.append(Ended(outcome="finished", text=f"The LoRA is in /loras/{folder}", time_over=over))
    run.log.close()
    view = LookView(Look("The keeper of the", run))
    view.catch_up()
    assert ("The two minutes are over at step" in view.html()) == over


def test_it_is_said_that_the_model_is_busy_for_as_long_as_it_is(look):
    done = threading.Event()

    def work(job):
        done.wait(PATIENCE_SECONDS)
        return Ended(outcome="finished", text="")

    async def said():
        found = []
        async for words in look.press(""):
            found.append(words)
            done.set()
        return found

    look._joined.session.start("training", "Training 'night'", look._joined.host, work)
    assert shown(look)["go"]["interactive"] is False
    refusal, after = asyncio.run(said())
    assert "The model is busy: Training &#x27;night&#x27;." in refusal and "can be pressed again" in after
    assert look._look is None
