"""Several runs in one command: all are checked first, then each is trained, even if another one fails.

They form a queue in memory; the queue of the page, which is a file, is not touched.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from ...core import dist_env
from ...core.errors import SettingsError, TrainingProError
from ...core.jobs import Job, Request
from ...records.queue import Queue
from ...settings.definitions import TrainingSettings
from ..options import say

if TYPE_CHECKING:
    from ...data.report import DatasetReport

CheckFn = Callable[[TrainingSettings], "DatasetReport"]


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
    runs = list[TrainingSettings]()
    with _all_problems() as problems:
        for file in files:
            with _problems_of(file, problems):
                runs.append(read_settings(file))
    return runs


def check_runs(
    files: Sequence[Path],
    runs: Sequence[TrainingSettings],
    model: str,
    check_start: Callable[[TrainingSettings], DatasetReport],
) -> Queue:
    """Queue the runs; raises SettingsError with every problem that would refuse one of them at its start."""
    queue = Queue()
    with _all_problems() as problems:
        for number, (file, settings) in enumerate(zip(files, runs, strict=True)):
            say(f"Checking {file.name} ...")
            report = check_start(settings)
            with _problems_of(file, problems):
                names = [earlier.what.name for earlier in runs[:number]]  # also of runs with problems
                queue = queue.with_checked_run(settings, model, report, names)
    return queue


def train_queue(files: Sequence[Path], queue: Queue, train: TrainFn) -> int:
    """Train the runs one after another; Ctrl+C also cancels the rest. Returns 1 if one failed."""
    for number, file in enumerate(files, 1):
        run = queue.waiting[0]
        queue = queue.with_started(run)
        job = train(run.settings, first_message=f"Run {number} of {len(files)}: {file.name}")
        ending = (job.end.outcome, job.end.text) if job.end else ("failed", "")
        queue = queue.with_ended(run.number, *ending)
        if job.control.asked(Request.STOP):
            break
    results = [(run.outcome, run.name, run.text) for run in queue.done]
    for outcome, name, text in [*results, *(("not started", run.name, "") for run in queue.waiting)]:
        say(f"{outcome:<9}  {name}  {text}".rstrip())
    return 1 if any(run.outcome == "failed" for run in queue.done) else 0


@contextmanager
def _all_problems() -> Iterator[list[str]]:
    """Collect problems in the block; raises SettingsError with all of them at its end."""
    problems = list[str]()
    yield problems
    if problems:
        raise SettingsError(problems)


@contextmanager
def _problems_of(file: Path, problems: list[str]) -> Iterator[None]:
    """Add the error of the block to the problems, each line with the file name unless it has it already."""
    try:
        yield
    except TrainingProError as error:
        lines = error.problems if isinstance(error, SettingsError) else str(error).splitlines()
        problems += [line if line.startswith(f"{file.name}: ") else f"{file.name}: {line}" for line in lines]
