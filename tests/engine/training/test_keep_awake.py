"""The machine stays awake for as long as a run lasts: with stand-ins for what each system has."""

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
from training_pro.engine.training.keep_awake import awake
from training_pro.tests.conftest import ROOT

posix = pytest.mark.skipif(sys.platform == "win32", reason="stands in for a program with a shell script")


@pytest.fixture
def program(tmp_path, monkeypatch):
    """Puts a shell script in a program's place; it writes down its own number and what it was called with."""

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


def gone(pid):
    until = time.monotonic() + 5
    while is_alive(pid) and time.monotonic() < until:
        time.sleep(0.05)
    return not is_alive(pid)


def windows(monkeypatch, answer=1):
    calls = []

    def state(flags):
        calls.append(flags)
        return answer

    kernel = SimpleNamespace(SetThreadExecutionState=state)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    return calls


def test_windows_is_told_and_told_again(monkeypatch):
    calls, said = windows(monkeypatch), []
    with awake(said.append, platform="win32"):
        assert calls == [0x80000001]
    assert calls == [0x80000001, 0x80000000]
    with pytest.raises(ZeroDivisionError), awake(said.append, platform="win32"):
        raise ZeroDivisionError
    assert calls[2:] == [0x80000001, 0x80000000]
    assert said == []


def test_windows_may_refuse(monkeypatch):
    windows(monkeypatch, answer=0)
    said = []
    with awake(said.append, platform="win32"):
        pass
    assert said == ["The machine cannot be kept awake: Windows refuses it. It may go to sleep during the run."]


@posix
@pytest.mark.parametrize(
    ("platform", "name", "script", "words"),
    [
        ("darwin", "caffeinate", "exec sleep 60", "-i -w {pid}"),
        ("linux", "systemd-inhibit", INHIBIT, "--what=idle:sleep --mode=block"),
    ],
)
def test_a_helper_that_lasts_as_long(program, platform, name, script, words):
    called, said = program(name, script), []
    with pytest.raises(ZeroDivisionError), awake(said.append, platform=platform):
        until = time.monotonic() + 5
        while not called.exists() and time.monotonic() < until:
            time.sleep(0.02)
        pid, _, given = called.read_text().partition(" ")
        assert given.startswith(words.format(pid=os.getpid()))
        assert is_alive(pid)
        raise ZeroDivisionError
    assert not is_alive(pid)
    assert said == []


@posix
def test_linux_that_refuses_says_why(program):
    program("systemd-inhibit", "echo 'No bus' >&2; exit 1")
    said = []
    with awake(said.append, platform="linux"):
        pass
    assert said == ["The machine cannot be kept awake: No bus. It may go to sleep during the run."]


@posix
def test_a_system_that_does_not_answer_holds_nobody_up(program, monkeypatch):
    called = program("systemd-inhibit", "exec sleep 60")
    monkeypatch.setattr(module, "SECONDS", 0.3)
    said = []
    with awake(said.append, platform="linux"):
        assert not is_alive(called.read_text().split()[0])
    assert ["does not answer" in one for one in said] == [True]


@posix
@pytest.mark.parametrize("platform", ["linux", "darwin", "aix"])
def test_where_there_is_nothing_one_sentence_says_so(monkeypatch, tmp_path, platform):
    monkeypatch.setenv("PATH", str(tmp_path))
    said = []
    with awake(said.append, platform=platform):
        pass
    assert len(said) == 1
    assert said[0].startswith("The machine cannot be kept awake: ")


@posix
def test_killed_it_lets_go(program):
    called = program("systemd-inhibit", INHIBIT)
    code = f"""
        import importlib.util, sys, time
        spec = importlib.util.spec_from_file_location("training_pro", {str(ROOT / "script.py")!r})
        sys.modules["training_pro"] = module = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(module)
        from training_pro.engine.training.keep_awake import awake
        with awake(print, platform="linux"):
            print("held", flush=True)
            time.sleep(60)
    """
    other = subprocess.Popen([sys.executable, "-c", textwrap.dedent(code)], stdout=subprocess.PIPE, text=True)
    assert other.stdout.readline() == "held\n"
    helper = called.read_text().split()[0]
    assert is_alive(helper)
    other.send_signal(signal.SIGKILL)
    other.communicate()
    assert gone(helper)
