"""A lock is held or free; a program that only looks at it delays nobody."""

from __future__ import annotations

import threading
import time

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.files import is_locked, lock, locks


def looking(monkeypatch, path, seconds):
    """Start a thread that looks at the lock and is slow about it, as on a busy machine."""
    has_it, acquire = threading.Event(), locks._acquire

    def slowly(path, patience):
        held = acquire(path, patience)
        if threading.current_thread() is looker:
            has_it.set()
            time.sleep(seconds)
        return held

    monkeypatch.setattr(locks, "_acquire", slowly)
    looker = threading.Thread(target=is_locked, args=[path])
    looker.start()
    has_it.wait()
    return looker


def test_a_look_by_another_program_refuses_nobody(tmp_path, monkeypatch):
    (tmp_path / "a.lock").touch()
    looker = looking(monkeypatch, tmp_path / "a.lock", 0.05)
    with lock(tmp_path / "a.lock") as held:
        assert held
    looker.join()


def test_two_that_look_at_once_do_not_take_each_other_for_the_owner(tmp_path, monkeypatch):
    (tmp_path / "a.lock").touch()
    looker = looking(monkeypatch, tmp_path / "a.lock", 0.01)
    assert not is_locked(tmp_path / "a.lock")
    looker.join()


def test_one_owner_at_a_time(tmp_path):
    with lock(tmp_path / "a.lock") as first, lock(tmp_path / "a.lock") as second:
        assert (first, second, is_locked(tmp_path / "a.lock")) == (True, False, True)
    assert not is_locked(tmp_path / "a.lock")


def test_a_lock_that_nobody_made_is_free_and_looking_makes_none(tmp_path):
    assert not is_locked(tmp_path / "a.lock")
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_named(tmp_path):
    (tmp_path / "file").write_text("in the way", encoding="utf-8")
    with pytest.raises(SavingError, match="Can't write to"), lock(tmp_path / "file" / "a.lock"):
        pass
