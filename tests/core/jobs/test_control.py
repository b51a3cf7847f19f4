"""Wishes of the user's: each is there until the run has taken it."""

from __future__ import annotations

import threading

from training_pro.core.jobs.control import RunControl


def test_nothing_is_wished_at_first():
    control = RunControl()
    assert (control.stopping, control.saving, control.take_checkpoint()) == (False, False, False)


def test_a_stop_stays():
    control = RunControl()
    control.stop()
    assert (control.stopping, control.stopping) == (True, True)


def test_asking_twice_for_a_checkpoint_is_one_wish():
    control = RunControl()
    control.save_checkpoint()
    control.save_checkpoint()
    assert control.saving
    assert (control.take_checkpoint(), control.take_checkpoint(), control.saving) == (True, False, False)


def test_asking_twice_for_samples_is_one_wish():
    control = RunControl()
    assert not control.take_sample()
    control.sample()
    control.sample()
    assert control.sampling
    assert (control.take_sample(), control.take_sample(), control.sampling) == (True, False, False)


def test_asking_twice_for_an_evaluation_is_one_wish():
    control = RunControl()
    assert not control.take_evaluation()
    control.evaluate()
    control.evaluate()
    assert control.evaluating
    assert (control.take_evaluation(), control.take_evaluation(), control.evaluating) == (True, False, False)


def test_more_epochs_add_up_until_they_are_taken():
    control = RunControl()
    control.extend(1)
    control.extend(0.5)
    assert (control.extending, control.take_epochs(), control.take_epochs()) == (1.5, 1.5, 0.0)


def test_live_settings_are_swapped_whole_and_a_change_asked_for_early_stays():
    control = RunControl()
    assert control.live is None
    control.begin("the run's own")
    control.change("the user's")
    control.begin("the run's own")
    assert control.live == "the user's"


def waits(control):
    """Whether a training thread would wait now."""
    thread = threading.Thread(target=control.wait_while_pausing, daemon=True)
    thread.start()
    thread.join(0.05)
    return thread.is_alive()


def test_a_pause_holds_until_going_on_or_a_stop():
    for end in ("go_on", "stop", "throw_away"):
        control = RunControl()
        control.pause()
        assert control.pausing
        assert waits(control)
        getattr(control, end)()
        assert not control.pausing
        assert not waits(control)


def test_a_run_that_waits_wakes_up_to_free_its_memory_and_waits_on():
    control = RunControl()
    control.pause()
    control.pause_and_free()
    assert (control.pausing, control.freeing, waits(control)) == (True, True, False)
    assert control.take_free()
    assert (control.pausing, control.freeing, waits(control)) == (True, False, True)
    control.go_on()
    assert not waits(control)


def test_going_on_takes_the_wish_to_free_back():
    control = RunControl()
    control.pause_and_free()
    control.go_on()
    assert (control.pausing, control.take_free()) == (False, False)
