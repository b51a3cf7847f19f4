"""Reporters: their files under our folders, their surroundings put back, and no run that ends for one of them."""

from __future__ import annotations

import os
import sys
from types import SimpleNamespace

import pytest
from training_pro.core.errors import SettingsError
from training_pro.core.jobs.events import Advice, LibraryMessage, Progress
from training_pro.core.jobs.job import Job
from training_pro.engine.checks import requirements
from training_pro.engine.peft_engine import PeftEngine
from training_pro.tests.tiny import tree
from transformers import TrainerCallback
from transformers.integrations import integration_utils

NAMES = ("tensorboard", "wandb", "trackio")


class Told(TrainerCallback):
    """Stands in for one of transformers' own, and writes down what it is told and where it would write."""

    made: list = []
    fails = ""

    def __init__(self):
        self.logs, self.calls, self.environment = [], [], dict(os.environ)
        Told.made.append(self)
        self._maybe("made")

    def _maybe(self, call):
        self.calls.append(call)
        if call == Told.fails:
            raise RuntimeError("the network is gone\nand more of it")

    def on_train_begin(self, args, state, control, model=None, **more):
        self.begun_at, self.name = state.global_step, args.run_name
        sys.stdout.write("* created new run\n")
        self._maybe("begin")

    def on_log(self, args, state, control, logs=None, **more):
        self.logs.append((state.global_step, logs))
        self._maybe("log")

    def on_train_end(self, args, state, control, **more):
        self._maybe("end")


@pytest.fixture
def told(monkeypatch):
    monkeypatch.setattr(Told, "made", [])
    monkeypatch.setattr(Told, "fails", "")
    monkeypatch.setattr(requirements, "find_spec", lambda name: name)
    for name in NAMES:
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, Told)
    return Told.made


def run(place, reporter, **more):
    job = Job("training", "a test")
    end = place.train(job=job, report_to=reporter, max_steps=3, **more)
    return end, job.log.since(0)


@pytest.mark.parametrize("name", NAMES)
def test_it_is_told_of_every_step_from_the_first_that_is_done(place, told, name, capsys):
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    before = dict(os.environ)
    _, events = run(place, name, eval_data=["other.txt"])
    (one,) = told
    assert one.calls == ["made", "begin", "log", "log", "log", "end"]
    assert (one.begun_at, one.name) == (1, "a")
    steps = [e for e in events if isinstance(e, Progress)]
    assert [(step, logs["smoothed_loss"]) for step, logs in one.logs] == [(e.step, e.smoothed) for e in steps]
    assert [("eval_loss" in logs) for _, logs in one.logs] == [True, False, True]
    assert dict(os.environ) == before
    assert [(e.source, e.text) for e in events if isinstance(e, LibraryMessage)][-1] == (name, "* created new run")
    assert capsys.readouterr().out == ""


def test_everything_is_written_under_our_folders(place, told, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "/somewhere/else")
    monkeypatch.setenv("WANDB_DIR", "/somewhere/else")
    for name in NAMES:
        run(place, name, name=name)
    board, bias, track = (one.environment for one in told)
    assert board["TENSORBOARD_LOGGING_DIR"] == str(place.lora("tensorboard") / "tensorboard")
    assert {bias[name] for name in bias if name.startswith("WANDB_") and name.endswith("_DIR")} == {
        str(place.lora("wandb") / "wandb")
    }
    assert (bias["WANDB_DIR"], bias["WANDB_MODE"]) == (str(place.lora("wandb") / "wandb"), "offline")
    assert track["TRACKIO_DIR"] == str(place.folders.logs / "trackio")
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == os.environ["WANDB_DIR"] == "/somewhere/else"


def test_wandb_is_online_only_where_the_user_says_so(place, told, monkeypatch):
    finished = []
    monkeypatch.setitem(sys.modules, "wandb", SimpleNamespace(run="a run", finish=lambda: finished.append(True)))
    monkeypatch.setenv("WANDB_MODE", "online")
    run(place, "wandb")
    assert told[0].environment["WANDB_MODE"] == "online"
    assert finished == [True]


@pytest.mark.parametrize("fails", ["made", "begin", "log", "end"])
def test_one_that_fails_is_told_of_once_and_the_run_is_as_without(place, told, fails):
    place.train(name="without", max_steps=3)
    Told.fails = fails
    end, events = run(place, "trackio")
    assert end.outcome == "finished"
    said = [e.text for e in events if isinstance(e, Advice) and "Reporting" in e.text]
    assert said == [
        "Reporting to trackio failed and is off for the rest of this run, which goes on: the network is gone"
    ]
    assert told[0].calls.count(fails) == 1
    assert place.weights() == place.weights("without")


def test_one_that_is_not_installed_is_said_before_anything_is_read(place, monkeypatch):
    monkeypatch.setattr(requirements, "find_spec", lambda name: None)
    host = place.host()
    monkeypatch.setattr(host, "loaded", lambda: pytest.fail("it was loaded"))
    before = tree(place.folders.user_data)
    with pytest.raises(SettingsError) as error:
        PeftEngine().train(place.settings(report_to="tensorboard"), host, Job("training", "a test"))
    assert str(error.value) == (
        "Report to: tensorboard is not installed. Install it (pip install tensorboard), or choose none."
    )
    assert tree(place.folders.user_data) == before
