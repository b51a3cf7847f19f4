"""What a run asks of other programs: keep the machine awake, and track the run; no failure ends it."""

from __future__ import annotations

import ctypes
import io
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, redirect_stdout
from statistics import fmean
from typing import Any

from transformers import TrainerCallback
from transformers.integrations import integration_utils

from ...core.errors import first_line
from ...core.host import Folders
from ...core.jobs import Advice, EventLog, LibraryMessage
from ...records.report import graph_entry
from ...settings.definitions import ReportingSettings
from ...train_utils import is_logged
from ..plan import RunPlan, StepLog

ES_CONTINUOUS, ES_SYSTEM_REQUIRED = 0x80000000, 0x00000001  # of SetThreadExecutionState
HELPER_START_SECONDS = 3.0


@contextmanager
def prevent_sleep(log_note: Callable[[str], object], *, platform: str = sys.platform) -> Iterator[None]:
    """Prevent sleep within this context; if that is not possible, log one sentence about it."""
    fault = "this system is not supported"
    with ExitStack() as held:
        if platform == "win32":  # a state of this thread, the run's own; Windows releases it when the thread ends
            set_state = ctypes.windll.kernel32.SetThreadExecutionState  # type: ignore[attr-defined]
            fault = "Windows refused the request"
            if set_state(ES_CONTINUOUS | ES_SYSTEM_REQUIRED):
                fault = ""
                held.callback(set_state, ES_CONTINUOUS)
        elif platform == "darwin":
            fault = _run_helper(["caffeinate", "-i", "-w", str(os.getpid())], held)
        elif platform == "linux":
            words = ["--who=Training PRO", "--why=A training run is in progress"]
            options = ["--what=idle:sleep", "--mode=block", *words]
            fault = _run_helper(["systemd-inhibit", *options, "sh", "-c", "echo held; exec cat"], held)
        if fault:
            log_note(
                "The computer may go to sleep during the run, because Training PRO can't prevent it on this "
                f"system. Turn off sleep in the computer's settings. ({fault})"
            )
        yield


def _run_helper(command: list[str], held: ExitStack) -> str:
    """Run a program that keeps the machine awake until the stack closes; returns why it can't."""
    # Both helpers end with our process, however that ends: caffeinate watches it, and the `cat` below
    # systemd-inhibit reads from our pipe, which closes. In a session of its own, a helper has no terminal to ask
    # for a password.
    pipe = subprocess.PIPE
    try:
        helper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        return f"{command[0]} can't be started ({error.strerror})"
    with ExitStack() as ended:
        ended.callback(helper.communicate)
        ended.callback(helper.kill)  # first: the system takes the lock back from a dead process
        if command[0] == "systemd-inhibit":
            assert helper.stdout is not None and helper.stderr is not None
            ready, _, _ = select.select([helper.stdout], [], [], HELPER_START_SECONDS)
            if not ready:
                return "the system did not respond"
            if not helper.stdout.readline():
                reason = helper.stderr.read().decode(errors="replace").strip().partition("\n")[0]
                return f"systemd-inhibit said: {reason}" if reason else "the system refused the request"
        held.push(ended.pop_all())
    return ""


@contextmanager
def attach_reporter(
    run_plan: RunPlan, step_log: StepLog, folders: Folders, log: EventLog
) -> Iterator[list[Reporter]]:
    """Yield a callback for the chosen service, if any, with variables that keep its files in our folders."""
    asked, lora = run_plan.settings.records, run_plan.folder.path
    if asked.report_to == "none":
        yield []
        return
    # These win over the user's: files stay in our folders, models on this machine, and the console is ours.
    wandb_folders = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
    variables = {
        "TENSORBOARD_LOGGING_DIR": str(lora / "tensorboard"),
        "TRACKIO_DIR": str(folders.logs / "trackio"),  # of all runs, so that it can compare them
        **{f"WANDB_{folder}": str(lora / "wandb") for folder in wandb_folders},
        **{"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_LOG_MODEL": "false"},
        # The user's own win over these two.
        **{"WANDB_MODE": "offline", "WANDB_PROJECT": "training_pro"},
        **{key: os.environ[key] for key in ("WANDB_MODE", "WANDB_PROJECT") if key in os.environ},
    }
    saved = {variable: os.environ[variable] for variable in variables if variable in os.environ}
    os.environ.update(variables)
    reporter = Reporter(asked, step_log, log)
    try:
        yield [reporter]
    finally:
        reporter.finish()
        for variable in variables:
            os.environ.pop(variable, None)
        os.environ.update(saved)


class Reporter(TrainerCallback):  # type: ignore[misc]
    """Forwards to the callback of transformers; after a failure, which is logged, it is not called again.

    It begins with the first finished step, since nothing is written for a run before that. Checkpoints are not
    forwarded: they are not where transformers has them.
    """

    def __init__(self, asked: ReportingSettings, step_log: StepLog, log: EventLog) -> None:
        self._name, self._asked, self._step_log, self._log = asked.report_to, asked, step_log, log
        self._inner: Any = None
        self._end: Callable[[], None] | None = None
        self._reported = len(step_log.graph)
        self._losses: list[float] = []
        self._failed = False

    def on_step_end(self, args: Any, state: Any, control: Any, **kwargs: Any) -> None:
        if self._end is not None:
            self._log_errors(lambda: self._inner.on_step_end(args, state, control, **kwargs))

    def on_log(self, args: Any, state: Any, control: Any, logs: Any = None, **kwargs: Any) -> None:
        if not logs or "loss" not in logs:
            return

        def begin() -> None:
            self._inner = integration_utils.INTEGRATION_TO_CALLBACK[self._name]()
            self._inner.on_init_end(args, state, control, **kwargs)
            self._inner.on_train_begin(args, state, control, **kwargs)
            self._end = lambda: self._inner.on_train_end(args, state, control, **kwargs)

        if self._inner is None:
            self._log_errors(begin)
        self._losses.append(float(logs["loss"]))
        # What transformers does not log: the smoothed loss and new evaluations.
        keys = ("smoothed_loss", "eval_loss", "eval_perplexity", "eval_accuracy")
        new = [*map(graph_entry, self._step_log.graph[self._reported :])]
        extra = {key: entry[key] for entry in new for key in keys if key in entry}
        for entry in new:
            extra |= {f"preferences/{name}": value for name, value in entry.get("preferences", {}).items()}
        asked, step = self._asked, state.global_step
        if "eval_loss" in extra or is_logged(step, state.max_steps, asked.logging_steps, asked.logging_first_step):
            values = {**logs, **extra, "loss": fmean(self._losses)}
            self._losses, self._reported = [], len(self._step_log.graph)
            self._log_errors(lambda: self._inner.on_log(args, state, control, logs=values, **kwargs))

    def finish(self) -> None:
        """Close the reporter, however the run ended."""
        if self._end is not None:
            self._log_errors(self._end)
            if self._name == "wandb":  # transformers leaves its run open, and the next one would get its folder
                for function in ("finish", "teardown"):
                    self._log_errors(getattr(sys.modules.get("wandb"), function, lambda: None))
        self._inner = self._end = None  # they reference the model

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
