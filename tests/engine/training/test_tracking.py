"""Reporters: files in our folders, environment restored, and failures that never end a run."""

from __future__ import annotations

import os
import sys
from itertools import pairwise
from statistics import fmean
from types import SimpleNamespace

import pytest
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Advice, Job, LibraryMessage, Step
from training_pro.engine.checks import reporters
from training_pro.engine.peft_engine import PeftEngine
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.tiny import read_tree
from transformers import TrainerCallback
from transformers.integrations import integration_utils

NAMES = ("tensorboard", "wandb", "trackio")


class RecordingCallback(TrainerCallback):
    """Stand-in for a callback of transformers that records its calls and its environment."""

    created: list = []
    fails = ""

    def __init__(self):
        self.logs, self.calls, self.environment = [], [], dict(os.environ)
        RecordingCallback.created.append(self)
        self._maybe("made")

    def _maybe(self, call):
        self.calls.append(call)
        if call == RecordingCallback.fails:
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
def callbacks(monkeypatch):
    monkeypatch.setattr(RecordingCallback, "created", [])
    monkeypatch.setattr(RecordingCallback, "fails", "")
    monkeypatch.setattr(reporters, "find_spec", lambda name: name)
    for name in NAMES:
        monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, RecordingCallback)
    return RecordingCallback.created


def run(place, reporter, **more):
    job = Job("training", "a test")
    end = place.train(job=job, report_to=reporter, max_steps=3, **more)
    return end, job.log.since(0)


@pytest.mark.parametrize("name", NAMES)
def test_the_reporter_gets_every_step_from_the_first(place, callbacks, name, capsys):
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    before = dict(os.environ)
    _, events = run(place, name, eval_data=["other.txt"])
    (callback,) = callbacks
    assert callback.calls == ["made", "begin", "log", "log", "log", "end"]
    assert (callback.begun_at, callback.name) == (1, "a")
    steps = [e for e in events if isinstance(e, Step)]
    assert [(step, logs["smoothed_loss"]) for step, logs in callback.logs] == [(e.step, e.smoothed) for e in steps]
    assert [("eval_loss" in logs) for _, logs in callback.logs] == [True, False, True]
    assert dict(os.environ) == before
    assert [(e.source, e.text) for e in events if isinstance(e, LibraryMessage)][-1] == (name, "* created new run")
    assert capsys.readouterr().out == ""


@pytest.mark.parametrize(("first", "reported"), [(True, [1, 2, 4, 5]), (False, [2, 4, 5])])
def test_every_nth_step_is_reported_with_the_mean_loss_since_the_last(place, callbacks, first, reported):
    asked = {"logging_steps": 2, "logging_first_step": first, "run_name": "first try"}
    job = Job("training", "a test")
    place.train(job=job, report_to="wandb", max_steps=5, **asked)
    (callback,) = callbacks
    losses = [event.loss for event in job.log.since(0) if isinstance(event, Step)]
    assert [step for step, _ in callback.logs] == reported
    bounds = list(pairwise([0, *reported]))
    assert [logs["loss"] for _, logs in callback.logs] == [fmean(losses[a:b]) for a, b in bounds]
    assert callback.name == "first try"


def test_an_evaluation_is_reported_with_its_step(place, callbacks):
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    run(place, "wandb", eval_data=["other.txt"], eval_every=1, logging_steps=3)
    (callback,) = callbacks
    assert [(step, "eval_loss" in logs) for step, logs in callback.logs] == [(1, True), (2, True), (3, True)]


def test_all_files_are_in_our_folders(place, callbacks, monkeypatch):
    monkeypatch.setenv("TENSORBOARD_LOGGING_DIR", "/somewhere/else")
    monkeypatch.setenv("WANDB_DIR", "/somewhere/else")
    for name in NAMES:
        run(place, name, name=name)
    board, bias, track = (callback.environment for callback in callbacks)
    assert board["TENSORBOARD_LOGGING_DIR"] == str(place.lora("tensorboard") / "tensorboard")
    assert {bias[name] for name in bias if name.startswith("WANDB_") and name.endswith("_DIR")} == {
        str(place.lora("wandb") / "wandb")
    }
    assert (bias["WANDB_DIR"], bias["WANDB_MODE"]) == (str(place.lora("wandb") / "wandb"), "offline")
    assert track["TRACKIO_DIR"] == str(place.folders.logs / "trackio")
    assert os.environ["TENSORBOARD_LOGGING_DIR"] == os.environ["WANDB_DIR"] == "/somewhere/else"


def test_several_reporters_get_the_same_steps(place, callbacks):
    run(place, "tensorboard, wandb")
    assert [[step for step, _ in callback.logs] for callback in callbacks] == [[1, 2, 3]] * 2
    assert "TENSORBOARD_LOGGING_DIR" in callbacks[1].environment


def test_all_are_those_that_are_installed(place, callbacks, monkeypatch):
    monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", lambda: ["trackio", "wandb"])
    run(place, "all")
    assert len(callbacks) == 2
    monkeypatch.setattr(integration_utils, "get_available_reporting_integrations", list)
    assert run(place, "all", name="without")[0].outcome == "finished"
    assert len(callbacks) == 2


@pytest.mark.parametrize(
    ("name", "variable", "value"),
    [
        ("mlflow", "MLFLOW_TRACKING_URI", "sqlite:///{logs}/mlflow.db"),
        ("swanlab", "SWANLAB_LOG_DIR", "{lora}/swanlab"),
        ("clearml", "CLEARML_TASK", "first try"),
    ],
)
def test_files_and_names_of_other_reporters(place, callbacks, monkeypatch, name, variable, value):
    monkeypatch.delenv(variable, raising=False)
    monkeypatch.setitem(integration_utils.INTEGRATION_TO_CALLBACK, name, RecordingCallback)
    monkeypatch.setitem(sys.modules, "swanlab", SimpleNamespace(init=dict, finish=lambda: None))
    run(place, name, run_name="first try")
    (callback,) = callbacks
    expected = value.format(logs=place.folders.logs.as_posix(), lora=place.lora())
    assert callback.environment[variable] == expected
    assert variable not in os.environ
    assert "end" in callback.calls


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("comet_ml", "comet_ml is not installed. Install it (pip install comet-ml)"),
        ("azure_ml", "azure_ml is not installed. Install it (pip install azureml-core)"),
        ("dagshub", "dagshub is not installed. Install it (pip install dagshub mlflow)"),
        ("kubeflow", "kubeflow needs the environment variable KUBEFLOW_TRAINER_SERVER_URL. Set it"),
        ("wandbb", "transformers has no reporting integration called 'wandbb'. Choose one of "),
    ],
)
def test_every_reporter_says_what_it_lacks(monkeypatch, asked, reason):
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    (finding,) = reporters.reporter_problems((asked, "all"))
    assert finding.text.startswith(f"Report to: {reason}")
    assert finding.text.endswith(", or choose none.")


def test_every_reporter_of_transformers_can_be_chosen():
    assert set(integration_utils.INTEGRATION_TO_CALLBACK) <= set(SETTINGS["report_to"].choices)


def test_none_and_all_stand_alone(place):
    with pytest.raises(SettingsError, match="'all' can't be combined with other names"):
        place.settings(report_to=["wandb", "all"])


def test_wandb_is_online_only_if_the_user_says_so(place, callbacks, monkeypatch):
    ended = []
    library = SimpleNamespace(finish=lambda: ended.append("run"), teardown=lambda: ended.append("settings"))
    monkeypatch.setitem(sys.modules, "wandb", library)
    monkeypatch.setenv("WANDB_MODE", "online")
    run(place, "wandb")
    assert callbacks[0].environment["WANDB_MODE"] == "online"
    assert ended == ["run", "settings"]


@pytest.mark.parametrize("fails", ["made", "begin", "log", "end"])
def test_a_failure_is_logged_once_and_the_run_is_unaffected(place, callbacks, fails):
    place.train(name="without", max_steps=3)
    RecordingCallback.fails = fails
    end, events = run(place, "trackio")
    assert end.outcome == "finished"
    advice = [e.text for e in events if isinstance(e, Advice) and "Reporting" in e.text]
    assert advice == [
        "Reporting to trackio failed, so it is turned off for the rest of this run: the network is gone"
    ]
    assert callbacks[0].calls.count(fails) == 1
    assert place.weights() == place.weights("without")


def test_a_missing_reporter_is_refused_before_anything_is_read(place, monkeypatch):
    monkeypatch.setattr(reporters, "find_spec", lambda name: None)
    host = place.host()
    monkeypatch.setattr(host, "loaded_model", lambda: pytest.fail("it was loaded"))
    before = read_tree(place.folders.user_data)
    with pytest.raises(SettingsError) as error:
        PeftEngine().train(place.settings(report_to="tensorboard"), host, Job("training", "a test"))
    assert (
        str(error.value)
        == "Report to: tensorboard is not installed. Install it (pip install tensorboard), or choose none."
    )
    assert read_tree(place.folders.user_data) == before
