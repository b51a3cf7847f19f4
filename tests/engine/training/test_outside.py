"""What a run asks of other programs, with stand-ins for them: to keep the machine awake, and to track the run."""

from __future__ import annotations

import ctypes
import os
import sys
from types import SimpleNamespace

import pytest
from training_pro.core.jobs import Advice, Job, LibraryMessage, Note, Step
from training_pro.engine.training import prevent_sleep
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine.watching import at, events_of, texts
from transformers import TrainerCallback
from transformers.integrations import integration_utils

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


@pytest.mark.parametrize("answer", [1, 0])
def test_on_windows_a_state_is_set_and_reset_or_refused(monkeypatch, answer):
    calls, notes = [], []
    kernel = SimpleNamespace(SetThreadExecutionState=lambda flags: calls.append(flags) or answer)
    monkeypatch.setattr(ctypes, "windll", SimpleNamespace(kernel32=kernel), raising=False)
    with pytest.raises(ZeroDivisionError), prevent_sleep(notes.append, platform="win32"):
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
    (note,) = (text for text in texts(job, Note) if text.startswith(MAY_SLEEP))
    assert "(systemd-inhibit said: No bus)" in note


NAMES = ("tensorboard", "wandb", "trackio")


class RecordingCallback(TrainerCallback):
    """Stand-in for a callback of transformers that records its calls and its environment."""

    def __init__(self, created, fails):
        self.logs, self.calls, self.environment, self.fails = [], [], dict(os.environ), fails
        created.append(self)
        self.call("made")

    def call(self, call):
        self.calls.append(call)
        if call == self.fails:
            raise RuntimeError("the network is gone\nand more of it")

    def on_train_begin(self, args, state, control, **more):
        self.begun_at, self.name = state.global_step, args.run_name
        sys.stdout.write("* created new run\n")
        self.call("begin")

    def on_log(self, args, state, control, logs=None, **more):
        self.logs.append((state.global_step, logs))
        self.call("log")

    def on_train_end(self, args, state, control, **more):
        self.call("end")


@pytest.fixture
def callbacks(monkeypatch, tmp_path, request):
    """The callbacks that are made; each fails at the call that a test is parametrized with."""
    created, fails = [], getattr(request, "param", "")
    for name in NAMES:
        (tmp_path / f"{name}.py").write_text("")  # it is installed
        new = {name: lambda: RecordingCallback(created, fails)}
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, *new.popitem())
    monkeypatch.syspath_prepend(tmp_path)
    return created


def run(place, reporter, **more):
    job = Job("training", "a test")
    assert place.train(job=job, report_to=reporter, **{"max_steps": 3, **more}).outcome == "finished"
    return job


def test_a_reporter_gets_every_step_from_the_first(place, callbacks, capsys):
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    before = dict(os.environ)
    job = run(place, "trackio", eval_data=["other.txt"])
    (callback,) = callbacks
    assert callback.calls == ["made", "begin", "log", "log", "log", "end"]
    assert (callback.begun_at, callback.name) == (1, "a") and dict(os.environ) == before
    steps = [(step.step, step.smoothed) for step in events_of(job, Step)]
    assert [(step, logs["smoothed_loss"]) for step, logs in callback.logs] == steps
    assert ["eval_loss" in logs for _, logs in callback.logs] == [True, False, True]
    assert ("trackio", "* created new run") in [(e.source, e.text) for e in events_of(job, LibraryMessage)]
    assert capsys.readouterr().out == ""


VARIABLES = {
    "tensorboard": {"TENSORBOARD_LOGGING_DIR": "{lora}/tensorboard"},
    "wandb": {"WANDB_DIR": "{lora}/wandb", "WANDB_CACHE_DIR": "{lora}/wandb"},
    "trackio": {"TRACKIO_DIR": "{logs}/trackio"},
}


@pytest.mark.long
@pytest.mark.parametrize("name", NAMES)
def test_all_files_are_in_our_folders(place, callbacks, monkeypatch, name):
    for variable in VARIABLES[name]:
        monkeypatch.setenv(variable, "/somewhere/else")
    monkeypatch.delenv("WANDB_MODE", raising=False)
    before = dict(os.environ)
    run(place, name, max_steps=1)
    for variable, value in VARIABLES[name].items():
        expected = value.format(lora=place.lora().as_posix(), logs=place.folders.logs.as_posix())
        assert callbacks[0].environment[variable] == expected
    assert dict(os.environ) == before
    monkeypatch.setenv("WANDB_MODE", "online")
    run(place, name, name="b", max_steps=1)
    modes = [callback.environment.get("WANDB_MODE") for callback in callbacks]
    assert modes == ["offline", "online"]  # online if the user says so


@pytest.mark.long
@pytest.mark.parametrize("callbacks", ["made", "log", "end"], indirect=True)
def test_a_failure_is_logged_once_and_the_run_is_unaffected(place, callbacks, request):
    job = run(place, "trackio")
    place.train(name="without", max_steps=3)
    advice = [text for text in texts(job, Advice) if "Reporting" in text]
    off = "Reporting to trackio failed, so it is turned off for the rest of this run: the network is gone"
    assert advice == [off]
    assert callbacks[0].calls.count(request.node.callspec.params["callbacks"]) == 1
    assert place.weights() == place.weights("without")


@pytest.mark.long
@pytest.mark.parametrize(("first", "expected"), [(True, [1, 3, 6, 8]), (False, [3, 6, 8])])
def test_logging_steps_run_name_and_wandb_project(place, callbacks, first, expected):
    asked = {"run_name": "run", "logging_steps": 3, "logging_first_step": first, "epochs": 2, "max_steps": 0}
    run(place, "wandb", **asked)
    (callback,) = callbacks
    assert ([step for step, _ in callback.logs], callback.name) == (expected, "run")
    assert callback.environment["WANDB_PROJECT"] == "training_pro"
    assert "uses the project in this variable" in read_page("WANDB_PROJECT")
