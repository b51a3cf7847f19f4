"""Several runs on one command line: all are checked first, then each has its turn, come what may of the others."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from ..core import dist_env
from ..core.errors import SettingsError, TrainingProError
from ..core.jobs import Job
from ..data.report import DatasetReport
from ..records.queue import name_problem
from ..settings.definitions import TrainingSettings
from .options import say

Foresee = Callable[[TrainingSettings], DatasetReport]


class Train(Protocol):
    def __call__(self, settings: TrainingSettings, *, told: str) -> Job: ...


@dataclass(frozen=True)
class Asked:
    """What a file asks for."""

    file: Path
    settings: TrainingSettings

    @property
    def name(self) -> str:
        return self.settings.what.name


def read(files: Sequence[Path], settings_from: Callable[[Path], TrainingSettings]) -> list[Asked]:
    """SettingsError with the problems of all files."""
    if dist_env.count() > 1:
        raise SettingsError(
            ["Several settings files: that is for one process. Start torchrun (accelerate) once for each."]
        )
    queue, problems = list[Asked](), list[str]()
    for file in files:
        try:
            queue.append(Asked(file, settings_from(file)))
        except TrainingProError as error:
            problems += [_of(file, line) for line in str(error).splitlines()]
    return _or_refused(queue, problems)


def refuse(queue: Sequence[Asked], foresee: Foresee) -> None:
    """SettingsError with everything that any of them would be refused with at its turn."""
    problems = []
    for place, asked in enumerate(queue):
        say(f"Checking {asked.file.name} ...")
        earlier = [before.name for before in queue[:place]]
        taken = name_problem(asked.name, asked.settings.what.if_exists, earlier)
        found = [*filter(None, [taken]), *foresee(asked.settings).problems]
        problems += [_of(asked.file, problem) for problem in found]
    _or_refused(list(queue), problems)


def run(queue: Sequence[Asked], train: Train) -> int:
    """Each in turn; after Ctrl+C none begins any more. 1 where one failed."""
    jobs: list[Job] = []
    for place, asked in enumerate(queue, 1):
        if jobs and jobs[-1].control.stopping:
            break
        jobs.append(train(asked.settings, told=f"Run {place} of {len(queue)}: {asked.file.name}"))
    outcomes = [_outcome(job) for job in jobs]
    for asked, (outcome, words) in zip(queue, [*outcomes, *[("not begun", "")] * len(queue)], strict=False):
        say(f"{outcome:<9}  {asked.name}  {words}".rstrip())
    return 1 if "failed" in [outcome for outcome, _ in outcomes] else 0


def _outcome(job: Job) -> tuple[str, str]:
    return (job.end.outcome, job.end.text.partition("\n")[0]) if job.end else ("failed", "")


def _of(file: Path, problem: str) -> str:
    """A problem with the file that has it, once."""
    return problem if problem.startswith(f"{file.name}: ") else f"{file.name}: {problem}"


def _or_refused(queue: list[Asked], problems: Sequence[str]) -> list[Asked]:
    if problems:
        raise SettingsError(problems)
    return queue
