"""Keeping the machine awake, with stand-ins for the programs of each system."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest
from training_pro.core.jobs import Job, Note
from training_pro.engine.training import keep_awake
from training_pro.tests.engine.watching import at, texts

posix = pytest.mark.skipif(sys.platform == "win32", reason="stands in for a program with a shell script")
MAY_SLEEP = "The computer may go to sleep during the run, because Training PRO can't prevent it on this system. "
INHIBIT = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"'


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Replace a program by a shell script that records its process id and its arguments."""

    def stand_in(name, script):
        file = tmp_path / name
        file.write_text(f'#!/bin/sh\necho "$$ $*" >> {tmp_path}/called\n{script}\n', encoding="utf-8")
        file.chmod(0o755)
        monkeypatch.setenv("PATH", f"{tmp_path}:{os.environ['PATH']}")
        return tmp_path / "called"

    return stand_in


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def notes_of(platform):
    """What is said where nothing is done meanwhile."""
    notes = []
    with keep_awake.prevent_sleep(notes.append, platform=platform):
        pass
    return notes


@pytest.mark.parametrize("answer", [1, 0])
def test_on_windows_a_state_is_set_and_reset_or_refused(monkeypatch, answer):
    calls, notes = [], []
    kernel = SimpleNamespace(SetThreadExecutionState=lambda flags: calls.append(flags) or answer)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    with pytest.raises(ZeroDivisionError), keep_awake.prevent_sleep(notes.append, platform="win32"):
        raise ZeroDivisionError
    assert calls == ([0x80000001, 0x80000000] if answer else [0x80000001])
    said = f"{MAY_SLEEP}Turn off sleep in the computer's settings. (Windows refused the request)"
    assert notes == ([] if answer else [said])


@posix
@pytest.mark.skipif(sys.platform != "linux", reason="a run asks the program of its own system")
def test_the_helper_runs_as_long_as_a_run_even_if_that_fails(program, place):
    called, alive = program("systemd-inhibit", INHIBIT), []

    def fail(job):
        alive.append(is_alive(called.read_text().split()[0]))
        raise ZeroDivisionError

    job = at({1: fail})
    with pytest.raises(ZeroDivisionError):
        place.train(job=job, keep_awake=True)
    pid, _, arguments = called.read_text().partition(" ")
    assert arguments.startswith("--what=idle:sleep --mode=block")
    assert alive == [True] and not is_alive(pid)
    assert not any(MAY_SLEEP in text for text in texts(job, Note))
    called.unlink()
    program("systemd-inhibit", "echo 'No bus' >&2; exit 1")
    place.train(name="b", max_steps=1)
    assert not called.exists()  # it is not wanted
    job = Job("training", "a test")
    place.train(name="c", job=job, max_steps=1, keep_awake=True)
    assert any(
        text.startswith(MAY_SLEEP) and "(systemd-inhibit said: No bus)" in text for text in texts(job, Note)
    )


@posix
def test_a_system_that_does_not_answer_does_not_block_and_an_unsupported_one_is_reported(program, monkeypatch):
    called = program("systemd-inhibit", "exec sleep 60")
    monkeypatch.setattr(keep_awake, "HELPER_TIMEOUT_SECONDS", 0.3)
    (note,) = notes_of("linux")
    assert "did not respond" in note and not is_alive(called.read_text().split()[0])
    monkeypatch.setenv("PATH", str(called.parent / "nothing"))
    for platform in ("linux", "darwin", "aix"):
        (note,) = notes_of(platform)
        assert note.startswith(MAY_SLEEP)
