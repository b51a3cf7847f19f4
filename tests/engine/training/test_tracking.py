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
from training_pro.engine.peft_engine import PeftEngine
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.engine.watching import events_of, texts
from training_pro.tests.tiny import read_tree
from transformers import TrainerCallback
from transformers.integrations import integration_utils

NAMES = ("tensorboard", "wandb", "trackio", "swanlab")


class RecordingCallback(TrainerCallback):
    """Stand-in for a callback of transformers that records its calls and its environment."""

    def __init__(self, created, fails):
        self.logs, self.calls, self.environment, self._fails = [], [], dict(os.environ), fails
        created.append(self)
        self.call("made")

    def call(self, call):
        self.calls.append(call)
        if call == self._fails:
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


def test_the_reporters_get_every_step_from_the_first(place, callbacks, capsys):
    place.write("other.txt", "A cook stood in the kitchen and cut the bread.")
    before = dict(os.environ)
    job = run(place, "tensorboard, trackio", eval_data=["other.txt"])
    assert len(callbacks) == 2
    for callback in callbacks:
        assert callback.calls == ["made", "begin", "log", "log", "log", "end"]
        assert (callback.begun_at, callback.name) == (1, "a")
        steps = [(step.step, step.smoothed) for step in events_of(job, Step)]
        assert [(step, logs["smoothed_loss"]) for step, logs in callback.logs] == steps
        assert ["eval_loss" in logs for _, logs in callback.logs] == [True, False, True]
    assert "TENSORBOARD_LOGGING_DIR" in callbacks[1].environment and dict(os.environ) == before
    said = [(event.source, event.text) for event in events_of(job, LibraryMessage)]
    assert {(name, "* created new run") for name in ("tensorboard", "trackio")} <= set(said)
    assert capsys.readouterr().out == ""


def test_every_nth_step_is_reported_with_the_mean_loss_since_the_last(place, callbacks):
    job = run(place, "wandb", logging_steps=2, logging_first_step=False, run_name="first try", max_steps=5)
    losses, reported = [event.loss for event in events_of(job, Step)], [2, 4, 5]
    assert [step for step, _ in callbacks[0].logs] == reported and callbacks[0].name == "first try"
    means = [fmean(losses[a:b]) for a, b in pairwise([0, *reported])]
    assert [logs["loss"] for _, logs in callbacks[0].logs] == means


@pytest.mark.parametrize(
    ("name", "variables"),
    [
        ("tensorboard", {"TENSORBOARD_LOGGING_DIR": "{lora}/tensorboard"}),
        ("wandb", {"WANDB_DIR": "{lora}/wandb", "WANDB_CACHE_DIR": "{lora}/wandb", "WANDB_MODE": "offline"}),
        ("trackio", {"TRACKIO_DIR": "{logs}/trackio"}),
        ("swanlab", {"SWANLAB_LOG_DIR": "{lora}/swanlab"}),
    ],
)
def test_all_files_and_names_are_ours(place, callbacks, monkeypatch, name, variables):
    for variable in variables:
        monkeypatch.delenv(variable, raising=False)
        if variable.endswith("_DIR"):
            monkeypatch.setenv(variable, "/somewhere/else")
    before, ended = dict(os.environ), []
    library = SimpleNamespace(init=dict, finish=lambda: ended.append("run"), teardown=lambda: ended.append("all"))
    monkeypatch.setitem(sys.modules, name, library)
    run(place, name, run_name="first try", max_steps=1)
    for variable, value in variables.items():
        expected = value.format(lora=place.lora().as_posix(), logs=place.folders.logs.as_posix())
        assert callbacks[0].environment[variable] == expected
    assert dict(os.environ) == before and "end" in callbacks[0].calls
    assert ended == {"wandb": ["run", "all"], "swanlab": ["run"]}.get(name, [])
    if name == "wandb":  # online only if the user says so
        monkeypatch.setenv("WANDB_MODE", "online")
        run(place, name, name="b", max_steps=1)
        assert callbacks[1].environment["WANDB_MODE"] == "online"


@pytest.mark.parametrize("callbacks", ["made", "log", "end"], indirect=True)
def test_a_failure_is_logged_once_and_the_run_is_unaffected(place, callbacks, request):
    job = run(place, "trackio")
    place.train(name="without", max_steps=3)
    advice = [text for text in texts(job, Advice) if "Reporting" in text]
    off = "Reporting to trackio failed, so it is turned off for the rest of this run: the network is gone"
    assert advice == [off]
    assert callbacks[0].calls.count(request.node.callspec.params["callbacks"]) == 1
    assert place.weights() == place.weights("without")


@pytest.mark.parametrize(
    ("asked", "reason"),
    [
        ("comet_ml", "comet_ml is not installed. Install it (pip install comet-ml), or choose none."),
        ("dagshub", "dagshub is not installed. Install it (pip install dagshub mlflow), or choose none."),
        (
            "kubeflow",
            "kubeflow needs the environment variable KUBEFLOW_TRAINER_SERVER_URL. Set it",
        ),
        ("wandbb", "transformers has no reporting integration called 'wandbb'. Choose one of "),
    ],
)
def test_a_missing_reporter_says_what_it_lacks_before_anything_is_read(place, monkeypatch, asked, reason):
    monkeypatch.delenv("KUBEFLOW_TRAINER_SERVER_URL", raising=False)
    host, before = place.host(), read_tree(place.folders.user_data)
    with pytest.raises(SettingsError) as error:
        PeftEngine().train(place.settings(report_to=asked), host, Job("training", "a test"))
    assert str(error.value).startswith(f"Report to: {reason}")
    assert host.model_status().problem  # it is not loaded
    assert read_tree(place.folders.user_data) == before


def test_every_reporter_of_transformers_can_be_chosen():
    assert set(integration_utils.INTEGRATION_TO_CALLBACK) <= set(SETTINGS["report_to"].choices)
