"""Keeping the machine awake, with stand-ins for the programs of each system."""

from __future__ import annotations

import ctypes
import os
import signal
import subprocess
import sys
import textwrap
import time
from types import SimpleNamespace

import pytest
from training_pro.engine.training import keep_awake as module
from training_pro.engine.training.keep_awake import prevent_sleep
from training_pro.tests.conftest import ROOT

posix = pytest.mark.skipif(sys.platform == "win32", reason="stands in for a program with a shell script")


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


INHIBIT = 'while [ "${1#--}" != "$1" ]; do shift; done\nexec "$@"'


def is_alive(pid):
    try:
        os.kill(int(pid), 0)
    except ProcessLookupError:
        return False
    return True


def has_ended(pid):
    until = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def fake_windows(monkeypatch, answer=1):
    calls = []

    def state(flags):
        calls.append(flags)
        return answer

    kernel = SimpleNamespace(SetThreadExecutionState=state)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    return calls


def test_windows_state_is_set_and_reset(monkeypatch):
    calls, messages = fake_windows(monkeypatch), []
    with prevent_sleep(messages.append, platform="win32"):
        assert calls == [0x80000001]
    assert calls == [0x80000001, 0x80000000]
    with pytest.raises(ZeroDivisionError), prevent_sleep(messages.append, platform="win32"):
        raise ZeroDivisionError
    assert calls[2:] == [0x80000001, 0x80000000]
    assert messages == []


def test_windows_may_refuse(monkeypatch):
    fake_windows(monkeypatch, answer=0)
    messages = []
    with prevent_sleep(messages.append, platform="win32"):
        pass
    assert messages == [
        "The computer may go to sleep during the run, because Training PRO can't prevent it on this system. Turn "
        "off sleep in the computer's settings. (Windows refused the request)"
    ]


@posix
@pytest.mark.parametrize(
    ("platform", "name", "script", "words"),
    [
        ("darwin", "caffeinate", "exec sleep 60", "-i -w {pid}"),
        ("linux", "systemd-inhibit", INHIBIT, "--what=idle:sleep --mode=block"),
    ],
)
def test_the_helper_runs_as_long_as_the_context(program, platform, name, script, words):
    called, messages = program(name, script), []
    with pytest.raises(ZeroDivisionError), prevent_sleep(messages.append, platform=platform):
        until = time.monotonic() + 5
        while not called.exists() and time.monotonic() < until:
            time.sleep(0.02)
        pid, _, arguments = called.read_text().partition(" ")
        assert arguments.startswith(words.format(pid=os.getpid()))
        assert is_alive(pid)
        raise ZeroDivisionError
    assert not is_alive(pid)
    assert messages == []


@posix
def test_a_refusal_on_linux_is_reported(program):
    program("systemd-inhibit", "echo 'No bus' >&2; exit 1")
    messages = []
    with prevent_sleep(messages.append, platform="linux"):
        pass
    assert messages == [
        "The computer may go to sleep during the run, because Training PRO can't prevent it on this system. Turn "
        "off sleep in the computer's settings. (systemd-inhibit said: No bus)"
    ]


@posix
def test_a_system_that_does_not_answer_does_not_block(program, monkeypatch):
    called = program("systemd-inhibit", "exec sleep 60")
    monkeypatch.setattr(module, "HELPER_TIMEOUT_SECONDS", 0.3)
    messages = []
    with prevent_sleep(messages.append, platform="linux"):
        assert not is_alive(called.read_text().split()[0])
    assert ["did not respond" in message for message in messages] == [True]


@posix
@pytest.mark.parametrize("platform", ["linux", "darwin", "aix"])
def test_an_unsupported_system_is_reported(monkeypatch, tmp_path, platform):
    monkeypatch.setenv("PATH", str(tmp_path))
    messages = []
    with prevent_sleep(messages.append, platform=platform):
        pass
    assert len(messages) == 1
    assert messages[0].startswith("The computer may go to sleep during the run, because Training PRO can't")


@posix
def test_the_lock_is_released_when_killed(program):
    called = program("systemd-inhibit", INHIBIT)
    code = f"""
        import importlib.util, sys, time
        spec = importlib.util.spec_from_file_location("training_pro", {str(ROOT / "script.py")!r})
        sys.modules["training_pro"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from training_pro.engine.training.keep_awake import prevent_sleep
        with prevent_sleep(print, platform="linux"):
            print("held", flush=True)
            time.sleep(60)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    helper = called.read_text().split()[0]
    assert is_alive(helper)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert has_ended(helper)
