"""Experiment tracking with the reporters of transformers; a failure never ends a run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import copy
from pathlib import Path
from statistics import fmean
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ...core.errors import first_line
from ...core.host import Folders
from ...core.jobs import Advice, EventLog, LibraryMessage
from ...settings.definitions import ReportingSettings
from ...train_utils import is_logged
from ..checks import NO_REPORTER
from ..plan import RunPlan, StepLog

PROJECT = "training_pro"
RUN_ENDS: Mapping[str, tuple[str, ...]] = {
    "dagshub": ("mlflow", "end_run"),
    "swanlab": ("swanlab", "finish"),
    "wandb": ("wandb", "finish", "teardown"),  # without the second, the next run has the folder of this one
}
"""Module and functions that end a reporter's run where transformers leaves it open for the next one."""


@contextmanager
def attach_reporters(
    run_plan: RunPlan, step_log: StepLog, folders: Folders, log: EventLog
) -> Iterator[list[ReporterCallback]]:
    """Yield a callback for the chosen reporters, with variables that keep their files in our folders."""
    asked, lora = run_plan.settings.records, run_plan.folder.path
    names = asked.reporters
    if "all" in names:
        names = tuple(integration_utils.get_available_reporting_integrations())
        if not names:
            log.append(Advice(text=NO_REPORTER))
    variables = {
        variable: value
        for name in names
        for variable, value in _tracking_variables(name, asked.run_name or lora.name, lora, folders).items()
    }
    saved = {variable: os.environ[variable] for variable in variables if variable in os.environ}
    os.environ.update(variables)
    reporters = [Reporter(name, asked, lora, step_log, log) for name in names]
    try:
        yield [ReporterCallback(reporters)] if reporters else []
    finally:
        for reporter in reporters:
            reporter.finish()
        for variable in variables:
            os.environ.pop(variable, None)
        os.environ.update(saved)


def _tracking_variables(name: str, run_name: str, lora: Path, folders: Folders) -> dict[str, str]:
    """Return the environment variables for a reporter; the user's own win over modes, projects and servers."""
    defaults = _default_variables(run_name, folders).get(name, {})
    chosen = {variable: os.environ.get(variable, value) for variable, value in defaults.items()}
    return {**_our_variables(name, lora, folders), **chosen}


def _default_variables(run_name: str, folders: Folders) -> dict[str, dict[str, str]]:
    experiment = {"MLFLOW_EXPERIMENT_NAME": PROJECT}
    database = f"sqlite:///{(folders.logs / 'mlflow.db').as_posix()}"
    return {
        "clearml": {"CLEARML_PROJECT": PROJECT, "CLEARML_TASK": run_name},
        "comet_ml": {"COMET_PROJECT_NAME": PROJECT},
        "dagshub": experiment,
        "mlflow": {"MLFLOW_TRACKING_URI": database, **experiment},
        "swanlab": {"SWANLAB_MODE": "offline"},
        "wandb": {"WANDB_MODE": "offline", "WANDB_PROJECT": PROJECT},
    }


def _our_variables(name: str, lora: Path, folders: Folders) -> dict[str, str]:
    """Return the variables that keep files in our folders and models on this machine."""
    if name == "tensorboard":
        return {"TENSORBOARD_LOGGING_DIR": str(lora / "tensorboard")}
    if name == "trackio":
        return {"TRACKIO_DIR": str(folders.logs / "trackio")}  # shared by all runs, so that it can compare them
    if name == "swanlab":
        return dict.fromkeys(("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR"), str(lora / "swanlab"))
    if name == "wandb":
        folder_variables = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
        silent = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_LOG_MODEL": "false"}
        return {**{f"WANDB_{variable}": str(lora / "wandb") for variable in folder_variables}, **silent}
    return {}


class ReporterCallback(TrainerCallback):  # type: ignore[misc]
    """Forwards to all reporters: transformers warns about a second callback of the same class."""

    def __init__(self, reporters: Sequence[Reporter]) -> None:
        self._reporters = reporters

    def on_train_begin(self, *args: Any, **kwargs: Any) -> None:
        for reporter in self._reporters:
            reporter.on_train_begin(*args, **kwargs)

    def on_step_end(self, *args: Any, **kwargs: Any) -> None:
        for reporter in self._reporters:
            reporter.on_step_end(*args, **kwargs)

    def on_log(self, *args: Any, **kwargs: Any) -> None:
        for reporter in self._reporters:
            reporter.on_log(*args, **kwargs)


class Reporter:
    """Forwards to the callback of transformers; after a failure, which is logged, it is not called again.

    It begins with the first finished step, since nothing is written for a run before that. Checkpoints are not
    forwarded: they are not where transformers has them.
    """

    def __init__(self, name: str, asked: ReportingSettings, lora: Path, step_log: StepLog, log: EventLog) -> None:
        self._name, self._asked, self._lora, self._step_log, self._log = name, asked, lora, step_log, log
        self._inner: Any = None
        self._begin: Callable[[], None] | None = None
        self._end: Callable[[], None] | None = None
        self._reported = len(step_log.graph)
        self._losses: list[float] = []
        self._failed = False
        self._log_errors(self._create)

    def _create(self) -> None:
        self._inner = integration_utils.INTEGRATION_TO_CALLBACK[self._name]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        self._begin = lambda: self._begin_run(args, state, control, **kwargs)

    def _begin_run(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        arguments = copy(args)
        arguments.output_dir = str(self._lora)  # CodeCarbon writes its file there
        self._open(args.run_name)
        self._inner.on_init_end(arguments, state, control, **kwargs)
        self._inner.on_train_begin(arguments, state, control, **kwargs)
        self._end = lambda: self._inner.on_train_end(arguments, state, control, **kwargs)

    def _open(self, run_name: str) -> None:
        """Begin the run of a reporter for which the callback of transformers does not do it here."""
        if self._name == "dvclive":  # it takes its folder from no variable
            from dvclive import Live

            self._inner.live = Live(dir=str(self._lora / "dvclive"), dvcyaml=False, save_dvc_exp=False)
        elif self._name == "swanlab":  # without a run, its newer versions raise where the callback asks for one
            import swanlab

            swanlab.init(project=os.environ.get("SWANLAB_PROJECT", PROJECT), experiment_name=run_name)

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._end is not None:
            self._log_errors(lambda: self._inner.on_step_end(args, state, control, **kwargs))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._log_errors(begin)
        self._losses.append(float(logs["loss"]))
        extra = self._extra_values()
        asked, step = self._asked, state.global_step
        if "eval_loss" in extra or is_logged(step, state.max_steps, asked.logging_steps, asked.logging_first_step):
            values = {**logs, **extra, "loss": fmean(self._losses)}
            self._losses, self._reported = [], len(self._step_log.graph)
            self._log_errors(lambda: self._inner.on_log(args, state, control, logs=values, **kwargs))

    def finish(self) -> None:
        """Close the reporter, however the run ended."""
        if self._end is not None:
            self._log_errors(self._end)
            module, *functions = RUN_ENDS.get(self._name, ("",))
            for function in functions:
                self._log_errors(getattr(sys.modules.get(module), function, lambda: None))
            if experiment := getattr(self._inner, "_experiment", None):  # of Comet
                self._log_errors(experiment.end)
        self._inner = self._begin = self._end = None  # they reference the model

    def _extra_values(self) -> dict[str, float]:
        """Return values that transformers does not log: the smoothed loss and new evaluations."""
        keys = ("smoothed_loss", "eval_loss", "eval_perplexity", "eval_accuracy")
        new = self._step_log.graph[self._reported :]
        return {key: entry[key] for entry in new for key in keys if key in entry}

    def _log_errors(self, act: Callable[[], object]) -> None:
        if self._failed:
            return
        output = io.StringIO()
        try:
            with redirect_stdout(output):  # trackio prints, but a command's standard output is for its results
                act()
        except Exception as error:  # noqa: BLE001 - no report is worth ending a training run
            self._failed = True
            text = f"Reporting to {self._name} failed, so it is turned off for the rest of this run"
            self._log.append(Advice(text=f"{text}: {first_line(error)}"))
        for line in output.getvalue().splitlines():
            self._log.append(LibraryMessage(source=self._name, text=line))
