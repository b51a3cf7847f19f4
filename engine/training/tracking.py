"""TensorBoard, W&B and trackio, through transformers: into our own folders, and never at the cost of a run."""

from __future__ import annotations

import io
import os
import sys
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, redirect_stdout
from pathlib import Path
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ...core.errors import first_line
from ...core.host import Folders
from ...core.jobs import Advice, EventLog, LibraryMessage
from ..plan import Blueprint
from .callback import BetweenSteps


@contextmanager
def reporting(run: Blueprint, between: BetweenSteps, folders: Folders, log: EventLog) -> Iterator[list[Reporter]]:
    """The reporter that was asked for, in surroundings that keep its files under our folders."""
    asked = run.settings.records.report_to
    if asked == "none":
        yield []
        return
    with _environment(_surroundings(asked, run.folder.path, folders)):
        reporter = Reporter(asked, between, log)
        try:
            yield [reporter]
        finally:
            reporter.finish()


def _surroundings(asked: str, lora: Path, folders: Folders) -> dict[str, str]:
    """What each reads from the environment; W&B stays offline unless the user has said otherwise there."""
    if asked == "tensorboard":
        return {"TENSORBOARD_LOGGING_DIR": str(lora / "tensorboard")}
    if asked == "trackio":
        return {"TRACKIO_DIR": str(folders.logs / "trackio")}  # one for all runs: it compares them
    places = ("WANDB_DIR", "WANDB_CACHE_DIR", "WANDB_CONFIG_DIR", "WANDB_DATA_DIR", "WANDB_ARTIFACT_DIR")
    silent = {"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_LOG_MODEL": "false"}
    usual = {"WANDB_MODE": "offline", "WANDB_PROJECT": "training_pro"}
    own = {name: os.environ.get(name, value) for name, value in usual.items()}
    return {**dict.fromkeys(places, str(lora / "wandb")), **silent, **own}


@contextmanager
def _environment(wanted: Mapping[str, str]) -> Iterator[None]:
    before = {name: os.environ.get(name) for name in wanted}
    os.environ.update(wanted)
    try:
        yield
    finally:
        for name, value in before.items():
            if value is None:
                os.environ.pop(name, None)
            else:
                os.environ[name] = value


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Hands on what transformers' own callback wants to know. One that fails is told of, and left alone then.

    It begins with the first step that is done: before that nothing is written for a run.
    """

    def __init__(self, name: str, between: BetweenSteps, log: EventLog) -> None:
        self._name, self._between, self._log = name, between, log
        self._inner: Any = None
        self._begin: Callable[[], None] | None = None
        self._end: Callable[[], None] | None = None
        self._told = len(between.evaluations)
        self._failed = False
        self._carefully(self._make)

    def _make(self) -> None:
        self._inner = integration_utils.INTEGRATION_TO_CALLBACK[self._name]()

    def on_train_begin(self, args: Any, state: Any, control: Any, **more: Any) -> None:
        self._begin = lambda: self._inner.on_train_begin(args, state, control, **more)

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **more: Any) -> None:
        if not logs or "loss" not in logs:
            return
        if self._begin is not None:
            begin, self._begin = self._begin, None
            self._carefully(begin)
            self._end = lambda: self._inner.on_train_end(args, state, control, **more)
        known = {**logs, **self._known()}
        self._carefully(lambda: self._inner.on_log(args, state, control, logs=known, **more))

    def finish(self) -> None:
        """However the run ended, what is open is closed; W&B's own run does not end by itself."""
        if self._end is not None:
            self._carefully(self._end)
        library = sys.modules.get("wandb")
        if self._name == "wandb" and library is not None and getattr(library, "run", None) is not None:
            self._carefully(library.finish)
        self._inner = self._begin = self._end = None  # they hold the model

    def _known(self) -> dict[str, float]:
        """What HF does not know: the smoothed loss, and what was found on the part kept aside meanwhile."""
        smoothed = self._between.course.smoothed
        known = {} if smoothed is None else {"smoothed_loss": smoothed}
        fresh, self._told = self._between.evaluations[self._told :], len(self._between.evaluations)
        for one in fresh:
            known |= {"eval_loss": one.loss, "eval_perplexity": one.perplexity, "eval_accuracy": one.accuracy}
        return known

    def _carefully(self, work: Callable[[], object]) -> None:
        if self._failed:
            return
        said = io.StringIO()
        try:
            with redirect_stdout(said):  # trackio prints, and what a command prints is what was asked for
                work()
        except Exception as error:  # noqa: BLE001 - whatever it is, no training ends for a report
            self._failed = True
            text = f"Reporting to {self._name} failed and is off for the rest of this run, which goes on"
            self._log.append(Advice(text=f"{text}: {first_line(error)}"))
        for line in said.getvalue().splitlines():
            self._log.append(LibraryMessage(source=self._name, text=line))
