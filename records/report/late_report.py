"""The report of a run that was killed after its last record and before its report: made from the records."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...core.files import write_text
from ...core.host import Folders
from ...core.jobs import JobEnded, RunPlanned
from ..folder import REPORT, RunLog, inventory, read_graph, read_log, read_parameters, read_samples
from .graph_file import read_steps
from .report import ReportData, render_report


def write_missing_report(folder: Path, folders: Folders) -> None:
    """Write the report of an ended run that has none; an unwritable folder stays without."""
    log = read_log(folder)
    if log.get("ended") is None or "data" not in log or (folder / REPORT).exists():  # unknown, or made elsewhere
        return
    with suppress(OSError):
        write_text(folder / REPORT, render_report(_story(folder, log, folders)))


def _story(folder: Path, log: RunLog, folders: Folders) -> ReportData:
    """The plan and the end of the run out of its records; what happened in between is not in them."""
    entry, graph = inventory.read_entry(folder, folders), read_graph(folder)
    steps = read_steps(graph)
    plan = RunPlanned(
        at=entry.when - sum(step.seconds for step in steps),
        name=folder.name,
        model=entry.model,
        steps=entry.steps,
        steps_per_epoch=0,
        first_step=0,
        rates=(),
        settings=read_parameters(folder),
    )
    outcome = log.get("ended") or "stopped"
    text = f"{folder.name!r} {outcome} at step {entry.step} of {entry.steps}."
    if reason := log.get("ended_because"):
        text = f"{text} Reason: {reason}."
    ended = JobEnded(at=entry.when, outcome=outcome, text=text, folder=folder)
    return ReportData([plan], ended, graph, read_samples(folder), log, entry)
