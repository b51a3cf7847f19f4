"""A lock is held or free; whoever only looks whether it is holds nobody up."""

from __future__ import annotations

import threading
import time

from training_pro.core.files import locks
from training_pro.core.files.locks import is_locked, lock


def looked_at(monkeypatch, path, seconds):
    """Somebody looks at it meanwhile, as slowly as a busy machine is."""
    looking, take = threading.Event(), locks._locked

    def slowly(file):
        ours = take(file)
        if threading.current_thread() is looker:
            looking.set()
            time.sleep(seconds)
        return ours

    monkeypatch.setattr(locks, "_locked", slowly)
    looker = threading.Thread(target=is_locked, args=[path])
    looker.start()
    looking.wait()
    return looker


def test_a_look_by_another_program_refuses_nobody(tmp_path, monkeypatch):
    (tmp_path / "a.lock").touch()
    looker = looked_at(monkeypatch, tmp_path / "a.lock", 0.05)
    with lock(tmp_path / "a.lock") as ours:
        assert ours
    looker.join()


def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(tmp_path, monkeypatch):
    (tmp_path / "a.lock").touch()
    looker = looked_at(monkeypatch, tmp_path / "a.lock", 0.01)
    assert not is_locked(tmp_path / "a.lock")
    looker.join()


def test_what_is_held_is_held(tmp_path):
    with lock(tmp_path / "a.lock") as ours, lock(tmp_path / "a.lock") as theirs:
        assert (ours, theirs, is_locked(tmp_path / "a.lock")) == (True, False, True)
    assert not is_locked(tmp_path / "a.lock")
