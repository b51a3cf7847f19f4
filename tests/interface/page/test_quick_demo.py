"""The quick demo: a run with a time limit that every page shows, and its message while the model is busy."""

from __future__ import annotations

import asyncio
import threading
import time

import gradio as gr
import pytest
from training_pro.core.jobs import Job, JobEnded, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import PageContext
from training_pro.interface.page.quick_demo import Demo, DemoView, QuickDemo

PATIENCE_SECONDS = 60
SHORT = 0.05  # instead of two minutes


@pytest.fixture
def demo(place):
    quick_demo = QuickDemo(PageContext(place.host(), PeftEngine(), Session()), seconds=SHORT)
    with gr.Blocks():
        quick_demo.draw()
    return quick_demo


def press(demo, prompt="The keeper of the"):
    """The first message after the button is pressed."""

    async def first():
        return await anext(demo.press(prompt))

    return asyncio.run(first())


def first_updates(demo):
    """The first updates of a page that is opened now, by name."""

    async def first():
        return await anext(demo.follow())

    names = {demo._start_button: "button", demo._status: "status", demo._without: "without", demo._with: "with"}
    return {names[part]: value for part, value in asyncio.run(first()).items()}


def wait_for(condition, what):
    deadline = time.monotonic() + PATIENCE_SECONDS
    while not condition():
        assert time.monotonic() < deadline, what
        time.sleep(0.1)


def test_the_demo_is_folded_away_once_the_user_trains_a_lora_of_their_own(demo):
    context = demo._context
    assert press(demo) == "" and demo._current_prompt()[1]["open"]
    wait_for(lambda: demo._demo.answer is not None and not demo._demo.answer.running, "both answers")

    async def folded():
        updates = demo.follow()
        before = await anext(updates)
        context.session.train("mine", context.host, lambda *use: JobEnded(outcome="finished", text=""))
        after = await anext(each async for each in updates if demo._fold in each)
        return demo._fold in before, after[demo._fold]["open"]

    assert asyncio.run(asyncio.wait_for(folded(), PATIENCE_SECONDS)) == (False, False)
    assert not demo._current_prompt()[1]["open"]


def test_a_page_opened_later_shows_the_run_its_end_and_both_answers(demo):
    assert first_updates(demo) == {"button": gr.update(interactive=True)}
    assert press(demo) == ""
    during = first_updates(demo)
    assert during["button"]["interactive"] is False and "Training &#39;first-look&#39;" in during["status"]
    wait_for(lambda: demo._demo.answer is not None and not demo._demo.answer.running, "both answers")
    after = first_updates(demo)
    assert after["button"]["interactive"] is True
    assert after["without"] and after["with"]
    assert demo._current_prompt()[0] == "The keeper of the"
    assert "The two-minute limit was reached at step" in after["status"] and "tp-fair" not in after["status"]
    end = demo._demo.run.end
    assert end.outcome == "finished" and "because the two-minute limit was reached" in end.text
    assert end.time_over


@pytest.mark.parametrize("over", [True, False])
def test_the_time_limit_is_read_from_the_event_and_not_from_its_text(over):
    run = Job("training", "Training 'first-look'")
    folder = "somewhere" if over else "the two-minute limit was reached"
    run.log.append(JobEnded(outcome="finished", text=f"The LoRA is in /loras/{folder}", time_over=over))
    run.log.close()
    view = DemoView(Demo("The keeper of the", run))
    view.catch_up()
    assert ("The two-minute limit was reached at step" in view.html()) == over


def test_it_says_that_the_model_is_busy_until_it_is_free(demo):
    finish = threading.Event()

    def work(job):
        finish.wait(PATIENCE_SECONDS)
        return JobEnded(outcome="finished", text="")

    async def collect():
        messages = []
        async for message in demo.press(""):
            messages.append(message)
            finish.set()
        return messages

    demo._context.session.start("training", "Training 'night'", demo._context.host, work)
    assert first_updates(demo)["button"]["interactive"] is False
    refusal, after = asyncio.run(collect())
    assert "The model is busy: Training &#39;night&#39;." in refusal and "is done. You can try again now" in after
    assert demo._demo is None
