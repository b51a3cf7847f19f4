"""The queue in words: what waits, how it goes on in each state, and what came of the others."""

from __future__ import annotations

import pytest
from training_pro.core.jobs.auto_start import Turns
from training_pro.interface.run.queue_view import _start_label, html
from training_pro.records.queue.queue import Queue

VALUES = {"name": "<b>", "data": ["story.txt", "chats.jsonl:50"], "epochs": 2.0, "max_steps": 0}


def of(count, **more):
    known = Queue()
    for number in range(count):
        known = known.with_one_more(f"<b>{number}", "tiny", {**VALUES, **more}, 1300)
    return known


def turns(*, going=False, due=False, said=""):
    made = Turns()
    if due:
        made.now()
    elif going:
        made.follow()
    elif said:
        made.hold(said)
    return made


def test_nothing_is_said_of_a_list_that_is_empty():
    assert html(Queue(), turns(), training=True) == ""


def test_a_row_names_the_run_and_has_its_ways():
    told = html(of(2), turns(going=True), training=True)
    assert "Queue: 2 wait" in told
    assert "<b>&lt;b&gt;0</b> story.txt, chats.jsonl:50; 1,300 steps in 2 epochs; tiny" in told
    assert 'data-tp-queue="away 2" title="Take out: &lt;b&gt;1"' in told
    assert 'data-tp-set="{&quot;name&quot;' in told
    assert "1,300 steps; tiny" in html(of(1, max_steps=1300), turns(), training=True)
    assert "Passed over: &lt;why&gt;" in html(of(1).after_skipping({1: "<why>"}), turns(), training=False)


def test_what_had_its_turn_is_told_below_and_can_be_had_back():
    known = of(1)
    known = known.beginning(known.waiting[0]).ended(1, "failed", "Out of <memory>.")
    told = html(known, turns(), training=False)
    assert "Queue: nothing waits" in told
    assert "&lt;b&gt;0: failed. Out of &lt;memory&gt;." in told and "Into the form" in told


@pytest.mark.parametrize(
    ("state", "training", "said", "offer"),
    [
        ({"going": True}, True, "begins by itself when this run ends", "Start the queue (1 waits)"),
        ({"going": True}, False, "after the next run that you start, or at once", "Start the queue (1 waits)"),
        ({"due": True}, False, "as soon as the model is free", "Start the queue (1 waits)"),
        ({}, False, "After a start of the program", "Go on with the queue (1 waits)"),
        (
            {"said": "Stopped by hand."},
            True,
            "Stopped by hand. The queue does not follow the run that goes now, unless you press Let the queue",
            "Let the queue follow this run (1 waits)",
        ),
        (
            {"said": "Stopped by hand."},
            False,
            "Stopped by hand. Press Go on with the queue.",
            "Go on with the queue (1 waits)",
        ),
    ],
)
def test_it_says_how_it_goes_on(state, training, said, offer):
    assert said in html(of(1), turns(**state), training=training)
    assert _start_label(1, turns(**state), training=training) == offer
