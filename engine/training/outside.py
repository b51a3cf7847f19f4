"""What a run asks of other programs: keep the machine awake, and track the run; no failure ends it."""

from __future__ import annotations

import ctypes
import io
import os
import select
import subprocess
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, redirect_stdout
from copy import copy
from functools import partial
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

ES_CONTINUOUS, ES_SYSTEM_REQUIRED = 0x80000000, 0x00000001  # of SetThreadExecutionState
HELPER_TIMEOUT_SECONDS = 3.0  # timeout for a helper process to start, and to end
PROJECT = "training_pro"
# Module and functions that end a reporter's run where transformers leaves it open for the next one.
RUN_ENDS: Mapping[str, tuple[str, ...]] = {
    "dagshub": ("mlflow", "end_run"),
    "swanlab": ("swanlab", "finish"),
    "wandb": ("wandb", "finish", "teardown"),  # without the second, the next run has the folder of this one
}


class _CannotError(Exception):
    """This machine cannot be kept awake; the message says why."""


@contextmanager
def prevent_sleep(log_note: Callable[[str], object], *, platform: str = sys.platform) -> Iterator[None]:
    """Prevent sleep within this context; if that is not possible, log one sentence about it."""
    release: Callable[[], object] | None = None
    try:
        release = _inhibit_sleep(platform)
    except _CannotError as error:
        log_note(
            "The computer may go to sleep during the run, because Training PRO can't prevent it on this system. "
            f"Turn off sleep in the computer's settings. ({error})"
        )
    try:
        yield
    finally:
        if release is not None:
            release()


def _inhibit_sleep(platform: str) -> Callable[[], object]:
    """Inhibit sleep, and return what releases it."""
    if platform == "win32":  # a state of this thread, the run's own; Windows releases it when the thread ends
        execution_state = ctypes.windll.kernel32.SetThreadExecutionState  # type: ignore[attr-defined]
        if not execution_state(ES_CONTINUOUS | ES_SYSTEM_REQUIRED):
            raise _CannotError("Windows refused the request")
        return partial(execution_state, ES_CONTINUOUS)
    # Both helpers end with our process, however that ends: caffeinate watches it, and the `cat` below
    # systemd-inhibit reads from our pipe, which closes. In a session of its own, a helper has no terminal to ask
    # for a password.
    if platform == "darwin":
        command = ["caffeinate", "-i", "-w", str(os.getpid())]
    elif platform == "linux":
        words = ["--who=Training PRO", "--why=A training run is in progress"]
        options = ["--what=idle:sleep", "--mode=block", *words]
        command = ["systemd-inhibit", *options, "sh", "-c", "echo held; exec cat"]
    else:
        raise _CannotError("this system is not supported")
    pipe = subprocess.PIPE
    try:
        helper = subprocess.Popen(command, stdin=pipe, stdout=pipe, stderr=pipe, start_new_session=True)
    except OSError as error:
        raise _CannotError(f"{command[0]} can't be started ({error.strerror})") from error
    if platform == "linux":
        assert helper.stdout is not None and helper.stderr is not None
        ready, _, _ = select.select([helper.stdout], [], [], HELPER_TIMEOUT_SECONDS)
        if not ready or not helper.stdout.readline():
            reason = helper.stderr.read().decode(errors="replace").strip().partition("\n")[0] if ready else ""
            _end_helper(helper)
            said = f"systemd-inhibit said: {reason}" if reason else "the system refused the request"
            raise _CannotError(said if ready else "the system did not respond")
    return partial(_end_helper, helper)


def _end_helper(helper: subprocess.Popen[bytes]) -> None:
    helper.terminate()
    try:
        helper.communicate(timeout=HELPER_TIMEOUT_SECONDS)
    except subprocess.TimeoutExpired:
        helper.kill()
        helper.communicate()


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
    variables: dict[str, str] = {}
    for name in names:
        variables |= _tracking_variables(name, asked.run_name or lora.name, lora, folders)
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
    """Return the environment variables for a reporter."""
    # The user's own win over these: modes, projects and servers.
    experiment = {"MLFLOW_EXPERIMENT_NAME": PROJECT}
    database = f"sqlite:///{(folders.logs / 'mlflow.db').as_posix()}"
    defaults: dict[str, dict[str, str]] = {
        "clearml": {"CLEARML_PROJECT": PROJECT, "CLEARML_TASK": run_name},
        "comet_ml": {"COMET_PROJECT_NAME": PROJECT},
        "dagshub": experiment,
        "mlflow": {"MLFLOW_TRACKING_URI": database, **experiment},
        "swanlab": {"SWANLAB_MODE": "offline"},
        "wandb": {"WANDB_MODE": "offline", "WANDB_PROJECT": PROJECT},
    }
    # These win over the user's: files stay in our folders, models on this machine, and the console is ours.
    wandb_folders = ("DIR", "CACHE_DIR", "CONFIG_DIR", "DATA_DIR", "ARTIFACT_DIR")
    ours: dict[str, dict[str, str]] = {
        "tensorboard": {"TENSORBOARD_LOGGING_DIR": str(lora / "tensorboard")},
        "trackio": {"TRACKIO_DIR": str(folders.logs / "trackio")},  # of all runs, so that it can compare them
        "swanlab": dict.fromkeys(("SWANLAB_LOG_DIR", "SWANLAB_LOGDIR"), str(lora / "swanlab")),
        "wandb": {
            **{f"WANDB_{folder}": str(lora / "wandb") for folder in wandb_folders},
            **{"WANDB_SILENT": "true", "WANDB_CONSOLE": "off", "WANDB_LOG_MODEL": "false"},
        },
    }
    chosen = {variable: os.environ.get(variable, value) for variable, value in defaults.get(name, {}).items()}
    return {**ours.get(name, {}), **chosen}


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
        def begin() -> None:
            arguments = copy(args)
            arguments.output_dir = str(self._lora)  # CodeCarbon writes its file there
            if self._name == "dvclive":  # it takes its folder from no variable
                from dvclive import Live

                self._inner.live = Live(dir=str(self._lora / "dvclive"), dvcyaml=False, save_dvc_exp=False)
            elif self._name == "swanlab":  # its newer versions raise where the callback asks for a run
                import swanlab

                swanlab.init(project=os.environ.get("SWANLAB_PROJECT", PROJECT), experiment_name=args.run_name)
            self._inner.on_init_end(arguments, state, control, **kwargs)
            self._inner.on_train_begin(arguments, state, control, **kwargs)
            self._end = lambda: self._inner.on_train_end(arguments, state, control, **kwargs)

        self._begin = begin

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
        # What transformers does not log: the smoothed loss and new evaluations.
        keys = ("smoothed_loss", "eval_loss", "eval_perplexity", "eval_accuracy")
        new = self._step_log.graph[self._reported :]
        extra = {key: entry[key] for entry in new for key in keys if key in entry}
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
