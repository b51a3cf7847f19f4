"""Several runs in one command: all are checked first, then each is trained, even if another one fails.

The queue of the page, which is a file, is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ..core import dist_env
from ..core.errors import SettingsError, TrainingProError
from ..core.jobs import Job, Request
from ..records.queue import start_problems
from ..settings.definitions import TrainingSettings
from .options import say

if TYPE_CHECKING:
    from ..data.report import DatasetReport


class TrainFn(Protocol):
    def __call__(self, settings: TrainingSettings, *, first_message: str) -> Job: ...


def read_files(files: Sequence[Path], read_settings: Callable[[Path], TrainingSettings]) -> list[TrainingSettings]:
    """Read the settings files; raises SettingsError with the problems of all files."""
    if dist_env.world_size() > 1:
        raise SettingsError(
            [
                "With several processes, the train command takes only one settings file at a time. Start torchrun "
                "(or accelerate) once for each file."
            ]
        )
    runs, problems = list[TrainingSettings](), list[str]()
    for file in files:
        try:
            runs.append(read_settings(file))
        except TrainingProError as error:
            lines = error.problems if isinstance(error, SettingsError) else str(error).splitlines()
            problems += _with_file(file, lines)
    if problems:
        raise SettingsError(problems)
    return runs


def check_runs(
    files: Sequence[Path],
    runs: Sequence[TrainingSettings],
    check_start: Callable[[TrainingSettings], DatasetReport],
) -> None:
    """Raise SettingsError with every problem that would refuse one of the runs at its start."""
    problems = list[str]()
    for number, (file, settings) in enumerate(zip(files, runs, strict=True)):
        say(f"Checking {file.name} ...")
        names = [earlier.what.name for earlier in runs[:number]]  # also of runs with problems
        problems += _with_file(file, start_problems(settings, check_start(settings), names))
    if problems:
        raise SettingsError(problems)


def _with_file(file: Path, problems: Sequence[str]) -> list[str]:
    """Begin each problem with the file name unless it has it already."""
    return [line if line.startswith(f"{file.name}: ") else f"{file.name}: {line}" for line in problems]


def train_runs(files: Sequence[Path], runs: Sequence[TrainingSettings], train: TrainFn) -> int:
    """Train the runs one after another; Ctrl+C also cancels the rest. Returns 1 if one failed."""
    results = list[tuple[str, str, str]]()
    for number, (file, settings) in enumerate(zip(files, runs, strict=True), 1):
        job = train(settings, first_message=f"Run {number} of {len(files)}: {file.name}")
        text = job.end.text.strip().partition("\n")[0] if job.end else ""
        results.append((job.end.outcome if job.end else "failed", settings.what.name, text))
        if job.control.asked(Request.STOP):
            break
    not_started = [("not started", settings.what.name, "") for settings in runs[len(results) :]]
    for outcome, name, text in [*results, *not_started]:
        say(f"{outcome:<9}  {name}  {text}".rstrip())
    return 1 if any(outcome == "failed" for outcome, _, _ in results) else 0
