"""HTML report of a run, written however the run ends."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core import dist_env
from ...core.errors import TrainingProError
from ...core.files import write_text
from ...core.host import Folders
from ...core.jobs import Advice, EvaluationDone, Event, Job, JobEnded, Note, RunPlanned, Step
from ...records.folder import REPORT, inventory, loras, read_graph, read_log, read_samples, read_state
from ...records.report import ReportData, graph_entry, render_report
from ...settings.definitions import FULL_FINETUNE


def run_with_report(run: Callable[[], JobEnded], folders: Folders, job: Job) -> JobEnded:
    """Run, and write a report into the run folder, even if the run fails."""
    try:
        ended = replace(run(), at=time.time())  # sample answers are logged after the run's own end event
    except BaseException as error:
        is_ours = isinstance(error, TrainingProError)
        text = f"The run failed. {error}" if is_ours else f"The run failed. {type(error).__name__}: {error}"
        details = "" if is_ours else traceback.format_exc()
        _write_report(JobEnded(outcome="failed", text=text, details=details), folders, job)
        raise
    if ended.folder is not None:
        _write_report(ended, folders, job)
    return ended


def _write_report(ended: JobEnded, folders: Folders, job: Job) -> None:
    """Write the report; not of a run that ended before its first step and has no folder yet."""
    events = job.log.since(0)
    planned = next((event for event in events if isinstance(event, RunPlanned)), None)
    has_steps = any(isinstance(event, Step) for event in events)
    if planned is None or not (has_steps or ended.folder) or not dist_env.is_main_process():
        return
    whole_model = planned.settings.get("method") == FULL_FINETUNE
    folder = ended.folder or folders.output_folder(full_finetune=whole_model) / planned.name
    try:
        if folder.is_dir():
            write_text(folder / REPORT, render_report(_build_story(ended, folder, folders, job)))
            job.log.append(Note(text=f"Report: {folder / REPORT}"))
    except Exception as error:  # noqa: BLE001 - the run is already saved, and a report must not fail it
        job.log.append(Advice(text=f"{REPORT} could not be written: {error or type(error).__name__}"))


def _build_story(ended: JobEnded, folder: Path, folders: Folders, job: Job) -> ReportData:
    events = job.log.since(0)
    crashed = ended.folder is None  # then no records were written
    return ReportData(
        events=events,
        ended=ended,
        graph=_partial_graph(folder, events) if crashed else read_graph(folder),
        samples=read_samples(folder),
        log={} if crashed else read_log(folder),
        lora=inventory.read_entry(folder, folders),
    )


def _partial_graph(folder: Path, events: Sequence[Event]) -> list[Mapping[str, Any]]:
    """Return the curve of a crashed run: from its last checkpoint, and from the events since."""
    entries = [graph_entry(event) for event in events if isinstance(event, (Step, EvaluationDone))]
    checkpoints = loras.resumable_checkpoints(folder)
    graph = read_state(checkpoints[-1].folder).get("graph", []) if checkpoints else []
    earlier = [entry for entry in graph if entry["current_steps"] < entries[0]["current_steps"]]
    return [*earlier, *entries]
