"""The queue as HTML: waiting runs, what happens next in each state, and finished runs."""

from __future__ import annotations

import pytest
from training_pro.core.jobs import AutoStart
from training_pro.interface.run.queue_view import _start_label, queue_html
from training_pro.records.queue import Queue

VALUES = {"name": "<b>", "data": ["story.txt", "chats.jsonl:50"], "epochs": 2.0, "max_steps": 0}


def queue_of(count, **more):
    queue = Queue()
    for number in range(count):
        queue = queue.with_run(f"<b>{number}", "tiny", {**VALUES, **more}, 1300)
    return queue


def auto_start(*, enabled=False, pending=False, off_reason=""):
    result = AutoStart()
    if pending:
        result.start_now()
    elif enabled:
        result.enable()
    elif off_reason:
        result.disable(off_reason)
    return result


def test_an_empty_queue_shows_nothing():
    assert queue_html(Queue(), auto_start(), training=True) == ""


def test_a_row_names_its_run_and_has_buttons():
    page = queue_html(queue_of(2), auto_start(enabled=True), training=True)
    assert "Queue: 2 wait" in page
    assert "<b>&lt;b&gt;0</b> story.txt, chats.jsonl:50; 1,300 steps in 2 epochs; tiny" in page
    assert 'data-tp-queue="away 2" title="Remove: &lt;b&gt;1"' in page
    assert 'data-tp-set="{&#34;name&#34;' in page
    assert "1,300 steps; tiny" in queue_html(queue_of(1, max_steps=1300), auto_start(), training=True)
    assert "Skipped: &lt;why&gt;" in queue_html(
        queue_of(1).with_skip_reasons({1: "<why>"}), auto_start(), training=False
    )


def test_finished_runs_stand_below_and_go_back_into_the_form():
    queue = queue_of(1)
    queue = queue.with_started(queue.waiting[0]).with_ended(1, "failed", "Out of <memory>.")
    page = queue_html(queue, auto_start(), training=False)
    assert "Queue: no waiting runs" in page
    assert "&lt;b&gt;0: failed. Out of &lt;memory&gt;." in page and "Load into form" in page


@pytest.mark.parametrize(
    ("state", "training", "said", "offer"),
    [
        ({"enabled": True}, True, "When the current run ends or fails, the next", "Start queue (1 waiting)"),
        ({"enabled": True}, False, "after the next run that you start, or right away", "Start queue (1 waiting)"),
        ({"pending": True}, False, "as soon as the model is free", "Start queue (1 waiting)"),
        ({}, False, "After a restart, the queue does not start by itself", "Resume queue (1 waiting)"),
        (
            {"off_reason": "Stopped by hand."},
            True,
            "Stopped by hand. To continue the queue when the current run ends, press Continue the queue",
            "Continue the queue after this run (1 waiting)",
        ),
        (
            {"off_reason": "Stopped by hand."},
            False,
            "Stopped by hand. Press Resume queue.",
            "Resume queue (1 waiting)",
        ),
    ],
)
def test_it_says_what_happens_next(state, training, said, offer):
    assert said in queue_html(queue_of(1), auto_start(**state), training=training)
    assert _start_label(1, auto_start(**state), training=training) == offer
