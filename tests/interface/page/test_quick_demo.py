"""The quick demo: a run with a time limit that every page shows, and its message while the model is busy."""

from __future__ import annotations

import threading

import pytest
from training_pro.core.jobs import Job, JobEnded, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import PageContext
from training_pro.interface.page.quick_demo import Demo, DemoView, QuickDemo
from training_pro.tests.interface.visit import Visit


@pytest.fixture
def context(place):
    return PageContext(place.host(), PeftEngine(), Session())


@pytest.fixture
def page(context):
    return Visit(QuickDemo(context, seconds=0.05).draw)  # instead of two minutes


@pytest.mark.long
def test_every_page_shows_the_run_its_end_and_both_answers_until_the_user_trains(page, context):
    first = page.until("Follow again")
    assert first.keys() == {"first-look"} and first["first-look"]["interactive"] is True
    assert page.steps("first-look", first_prompt="The keeper of the") == [{"first-refused": ""}]
    during = page.until("Follow again")
    assert during["first-look"]["interactive"] is False
    assert "Training &#39;first-look&#39;" in during["first-said"]
    after = page.until(
        "Follow again", lambda shown: shown.get("first-with") and shown["first-look"]["interactive"]
    )
    assert after["first-without"] and "The two-minute limit was reached at step" in after["first-said"]
    assert "tp-fair" not in after["first-said"]
    end = context.session.latest("training").end
    assert end.outcome == "finished" and end.time_over
    opened = page.press("Filling in the prompt", "load")
    assert opened["first-prompt"] == "The keeper of the" and opened["first-part"]["open"]
    done = lambda *use: JobEnded(outcome="finished", text="")  # noqa: E731
    train = lambda: context.session.train("mine", context.host, done)  # noqa: E731
    folded = page.until("Follow again", lambda shown: "first-part" in shown, train)
    assert folded["first-part"]["open"] is False
    assert not page.press("Filling in the prompt", "load")["first-part"]["open"]


@pytest.mark.parametrize("over", [True, False])
def test_the_time_limit_is_read_from_the_event_and_not_from_its_text(over):
    run = Job("training", "Training 'first-look'")
    folder = "somewhere" if over else "the two-minute limit was reached"
    run.log.append(JobEnded(outcome="finished", text=f"The LoRA is in /loras/{folder}", time_over=over))
    run.log.close()
    view = DemoView(Demo("The keeper of the", run))
    view.catch_up()
    assert ("The two-minute limit was reached at step" in view.html()) == over


def test_it_says_that_the_model_is_busy_until_it_is_free(page, context):
    finish = threading.Event()
    work = lambda job: finish.wait(60) and JobEnded(outcome="finished", text="")  # noqa: E731
    context.session.start("training", "Training 'night'", context.host, work)
    assert "The model is busy: Training &#39;night&#39;." in page.until("first-look")["first-refused"]
    page.until("first-look", lambda shown: "You can try again now" in shown["first-refused"], finish.set)
