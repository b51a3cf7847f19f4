"""Several runs in one command: all are checked first, then each is trained, even if another one fails."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core import dist_env
from ..core.errors import SettingsError, TrainingProError
from ..core.jobs import Job, Request
from ..data.report import DatasetReport
from ..records.queue import name_conflict
from ..settings.definitions import TrainingSettings
from .options import say

CheckFn = Callable[[TrainingSettings], DatasetReport]


class TrainFn(Protocol):
    def __call__(self, settings: TrainingSettings, *, first_message: str) -> Job: ...


@dataclass(frozen=True)
class PlannedRun:
    """A run of the command line: a settings file and its settings."""

    file: Path
    settings: TrainingSettings

    @property
    def name(self) -> str:
        return self.settings.what.name


def read_runs(files: Sequence[Path], settings_from: Callable[[Path], TrainingSettings]) -> list[PlannedRun]:
    """Read the settings files; raises SettingsError with the problems of all files."""
    if dist_env.world_size() > 1:
        raise SettingsError(
            ["Several settings files: that is for one process. Start torchrun (accelerate) once for each."]
        )
    queue, problems = list[PlannedRun](), list[str]()
    for file in files:
        try:
            queue.append(PlannedRun(file, settings_from(file)))
        except TrainingProError as error:
            problems += [_with_file_name(file, line) for line in str(error).splitlines()]
    return _return_or_refuse(queue, problems)


def check_runs(queue: Sequence[PlannedRun], foresee: CheckFn) -> None:
    """Check all runs; raises SettingsError with every problem that would refuse one of them at its start."""
    problems = []
    for number, planned in enumerate(queue):
        say(f"Checking {planned.file.name} ...")
        earlier = [previous.name for previous in queue[:number]]
        taken = name_conflict(planned.name, planned.settings.what.if_exists, earlier)
        file_problems = [*filter(None, [taken]), *foresee(planned.settings).problems]
        problems += [_with_file_name(planned.file, problem) for problem in file_problems]
    _return_or_refuse(list(queue), problems)


def run(queue: Sequence[PlannedRun], train: TrainFn) -> int:
    """Train the runs one after another; Ctrl+C also cancels the rest. Returns 1 if one failed."""
    jobs: list[Job] = []
    for number, planned in enumerate(queue, 1):
        if jobs and jobs[-1].control.asked(Request.STOP):
            break
        jobs.append(train(planned.settings, first_message=f"Run {number} of {len(queue)}: {planned.file.name}"))
    outcomes = [_outcome(job) for job in jobs]
    for planned, (outcome, message) in zip(queue, [*outcomes, *[("not begun", "")] * len(queue)], strict=False):
        say(f"{outcome:<9}  {planned.name}  {message}".rstrip())
    return 1 if "failed" in [outcome for outcome, _ in outcomes] else 0


def _outcome(job: Job) -> tuple[str, str]:
    return (job.end.outcome, job.end.text.partition("\n")[0]) if job.end else ("failed", "")


def _with_file_name(file: Path, problem: str) -> str:
    """Prefix a problem with its file name, unless it has it already."""
    return problem if problem.startswith(f"{file.name}: ") else f"{file.name}: {problem}"


def _return_or_refuse(queue: list[PlannedRun], problems: Sequence[str]) -> list[PlannedRun]:
    if problems:
        raise SettingsError(problems)
    return queue
