"""The report of a run, written when it has ended, in whatever way that was."""

from __future__ import annotations

import time
import traceback
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from ...core import dist_env
from ...core.errors import TrainingProError
from ...core.files import read_json, write_text
from ...core.host import Folders
from ...core.jobs import Advice, Ended, Evaluated, Event, Job, Note, Planned, Progress
from ...records.folder import GRAPH, LOG, REPORT, STATE, inventory, loras, read_samples
from ...records.report import Story, graph_file, page
from ...settings.definitions import FULL
from ..plan import graph_entry


def reported(run: Callable[[], Ended], folders: Folders, job: Job) -> Ended:
    """Run, and leave a report in the folder of the run, also where it fails."""
    try:
        ended = replace(run(), at=time.time())  # answers came after what it is made of
    except BaseException as error:
        _leave(_failed(error), folders, job)
        raise
    if ended.folder is not None:
        _leave(ended, folders, job)
    return ended


def _failed(error: BaseException) -> Ended:
    kind = "" if isinstance(error, TrainingProError) else f"{type(error).__name__}: "
    details = "" if isinstance(error, TrainingProError) else traceback.format_exc()
    return Ended(outcome="failed", text=f"It failed. {kind}{error}", details=details)


def _leave(ended: Ended, folders: Folders, job: Job) -> None:
    """Only of what began: before the first step is done there is no folder of the run."""
    events = job.log.since(0)
    planned = next((event for event in events if isinstance(event, Planned)), None)
    begun = any(isinstance(event, Progress) for event in events)
    if planned is None or not begun or not dist_env.is_first():
        return
    folder = ended.folder or folders.kept(whole_model=planned.settings.get("method") == FULL) / planned.name
    try:
        if folder.is_dir():
            write_text(folder / REPORT, page(_story(ended, folder, folders, job)))
            job.log.append(Note(text=f"How it went, on one page: {folder / REPORT}"))
    except Exception as error:  # noqa: BLE001 - the run is over and kept; its report is not worth more than that
        job.log.append(Advice(text=f"{REPORT} could not be written: {error or type(error).__name__}"))


def _story(ended: Ended, folder: Path, folders: Folders, job: Job) -> Story:
    events = job.log.since(0)
    broke_off = ended.folder is None  # no records were written
    return Story(
        events=events,
        ended=ended,
        graph=_so_far(folder, events) if broke_off else read_json(folder / GRAPH, []),
        samples=read_samples(folder),
        log={} if broke_off else read_json(folder / LOG, {}),
        kept=inventory.one(folder, folders),
    )


def _so_far(folder: Path, events: Sequence[Event]) -> list[Mapping[str, Any]]:
    """The curve of a run that broke off: what its checkpoint knew of the steps before, and what was told since."""
    told = [entry for event in events if (entry := _entry(event))]
    whole = loras.to_go_on_from(folder)
    known: dict[str, Any] = read_json(whole[-1].folder / STATE, {}) if whole else {}
    earlier = [e for e in known.get("graph", []) if e["current_steps"] < told[0]["current_steps"]]
    return [*earlier, *told]


def _entry(event: Event) -> Mapping[str, Any] | None:
    if isinstance(event, Evaluated):
        return graph_file.entry(event, "")
    return graph_entry(event) if isinstance(event, Progress) else None
