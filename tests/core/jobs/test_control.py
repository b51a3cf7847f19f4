"""Requests of the user: each is there until the run has taken it."""

import threading

import pytest
from training_pro.core.jobs import Request, RunControl


def control_with(*requests):
    control = RunControl()
    for request in requests:
        control.ask(request)
    return control


def waits(control):
    """Whether a training thread would wait now."""
    thread = threading.Thread(target=control.wait_while_paused, daemon=True)
    thread.start()
    thread.join(0.05)
    return thread.is_alive()


def test_asking_twice_counts_once_but_more_epochs_add_up():
    control = control_with(Request.CHECKPOINT, Request.CHECKPOINT)
    assert control.asked(Request.CHECKPOINT) and control.pending == {Request.CHECKPOINT}
    assert (control.take(Request.CHECKPOINT), control.take(Request.CHECKPOINT)) == (True, False)
    assert control_with(Request.DISCARD).pending == {Request.STOP, Request.DISCARD}
    control.extend(1)
    control.extend(0.5)
    assert (control.take_epochs(), control.asked(Request.MORE_EPOCHS)) == (1.5, False)


@pytest.mark.parametrize("request_", [None, Request.STOP])
def test_a_pause_holds_until_resumed_or_stopped(request_):
    control = control_with(Request.PAUSE)
    waiting = threading.Thread(target=control.wait_while_paused, daemon=True)
    waiting.start()
    assert control.asked(Request.PAUSE) and waits(control)
    control.ask(request_) if request_ else control.resume()
    waiting.join(10)
    assert not waiting.is_alive() and not control.asked(Request.PAUSE) and not waits(control)


def test_a_run_that_waits_wakes_up_to_free_its_memory_and_waits_on():
    control = control_with(Request.PAUSE, Request.FREE_MEMORY)
    assert (control.pending, waits(control)) == ({Request.PAUSE, Request.FREE_MEMORY}, False)
    assert control.take(Request.FREE_MEMORY)
    assert (control.pending, waits(control)) == ({Request.PAUSE}, True)
    control.ask(Request.FREE_MEMORY)
    control.resume()
    assert (control.asked(Request.PAUSE), control.take(Request.FREE_MEMORY)) == (False, False)
