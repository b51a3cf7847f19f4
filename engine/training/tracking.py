"""Experiment tracking with TensorBoard, W&B or trackio through transformers; a failure never ends a run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, redirect_stdout
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
from ..plan import RunPlan, StepLog


@contextmanager
def attach_reporter(
    run_plan: RunPlan, step_log: StepLog, folders: Folders, log: EventLog
) -> Iterator[list[Reporter]]:
    """Yield the chosen reporter, with environment variables that keep its files in our folders."""
    name = run_plan.settings.records.report_to
    if name == "none":
        yield []
        return
    variables = _tracking_variables(name, run_plan.folder.path, folders)
    saved = {variable: os.environ[variable] for variable in variables if variable in os.environ}
    os.environ.update(variables)
    reporter = Reporter(name, run_plan.settings.records, step_log, log)
    try:
        yield [reporter]
    finally:
        reporter.finish()
        for variable in variables:
            os.environ.pop(variable, None)
        os.environ.update(saved)


def _tracking_variables(name: str, lora: Path, folders: Folders) -> dict[str, str]:
    """Return the environment variables for a reporter; W&B stays offline unless the user has set its mode."""
    if name == "tensorboard":
        return {"TENSORBOARD_LOGGING_DIR": str(lora / "tensorboard")}
    if name == "trackio":
        return {"TRACKIO_DIR": str(folders.logs / "trackio")}  # shared by all runs, so that it can compare them
    dir_variables = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
    silent = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_LOG_MODEL": "false"}
    defaults = {"WANDB_MODE": "offline", "WANDB_PROJECT": "training_pro"}
    modes = {name: os.environ.get(name, value) for name, value in defaults.items()}
    return {**dict.fromkeys(dir_variables, str(lora / "wandb")), **silent, **modes}


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Forwards to the callback of transformers; after a failure, which is logged, it is not called again.

    It begins with the first finished step, since nothing is written for a run before that.
    """

    def __init__(self, name: str, asked: ReportingSettings, step_log: StepLog, log: EventLog) -> None:
        self._name, self._asked, self._step_log, self._log = name, asked, step_log, log
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
        self._begin = lambda: self._inner.on_train_begin(args, state, control, **kwargs)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._log_errors(begin)
            self._end = lambda: self._inner.on_train_end(args, state, control, **kwargs)
        self._losses.append(float(logs["loss"]))
        extra = self._extra_values()
        asked, step = self._asked, state.global_step
        if "eval_loss" in extra or is_logged(step, state.max_steps, asked.logging_steps, asked.logging_first_step):
            values = {**logs, **extra, "loss": fmean(self._losses)}
            self._losses, self._reported = [], len(self._step_log.graph)
            self._log_errors(lambda: self._inner.on_log(args, state, control, logs=values, **kwargs))

    def finish(self) -> None:
        """Close the reporter, however the run ended; W&B's run does not end by itself."""
        if self._end is not None:
            self._log_errors(self._end)
        library: Any = sys.modules.get("wandb")
        if self._name == "wandb" and getattr(library, "run", None) is not None:
            self._log_errors(library.finish)
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
            text = f"Reporting to {self._name} failed and is off for the rest of this run"
            self._log.append(Advice(text=f"{text}: {first_line(error)}"))
        for line in output.getvalue().splitlines():
            self._log.append(LibraryMessage(source=self._name, text=line))
