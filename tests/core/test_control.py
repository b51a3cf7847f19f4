"""Wishes of the user's: each is there until the run has taken it."""

from __future__ import annotations

from training_pro.core.control import RunControl


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
