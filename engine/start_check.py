"""Check for a run that waits in a queue: Check's report, plus problems of the run folder on disk."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace

from ..core.errors import TrainingProError
from ..core.host import Host
from ..data.report import DatasetReport
from ..records.folder import choose_run_folder
from ..settings.definitions import TrainingSettings


def add_disk_problems(report: DatasetReport, settings: TrainingSettings, host: Host, resume: str) -> DatasetReport:
    """Add the problems of the run's name and folder to Check's report."""
    return replace(report, problems=(*report.problems, *_run_folder_problems(settings, host, resume)))


def _run_folder_problems(settings: TrainingSettings, host: Host, resume: str) -> Iterator[str]:
    try:
        folder = choose_run_folder(settings, host.folders, resume)
        folder.refuse_without_start()
        if folder.initial_lora is not None:
            from .lora import refuse_shape_mismatch

            refuse_shape_mismatch(settings.lora, folder.initial_lora)
    except TrainingProError as error:
        yield from str(error).splitlines()
