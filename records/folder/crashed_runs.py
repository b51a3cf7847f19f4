"""Runs that were cut off by a crash: what was lost, and how to keep or discard them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core import files
from ...core.errors import SavingError
from ...core.files import safe_paths
from ...core.host import Folders
from ...core.jobs import Step, event_file
from ...train_utils import duration
from . import loras
from .run_files import GRAPH, LOG, STATE, log_entry, read_state
from .run_folder import RunFolder, hold_run_lock, is_in_progress, read_journal, recover_interrupted


@dataclass(frozen=True)
class CrashedRun:
    """A crashed run. It can resume from `safe_step`; `at` is the time of its last event or checkpoint."""

    name: str
    folder: Path
    at: float
    step: int
    steps: int
    safe_step: int
    lost_seconds: float

    @property
    def lost_steps(self) -> int:
        return max(0, self.step - self.safe_step)

    @property
    def lost_work(self) -> str:
        """What a resumed run has to repeat, in words."""
        if not self.lost_steps:
            return "nothing is lost"
        steps = "1 step is" if self.lost_steps == 1 else f"{self.lost_steps} steps are"
        return f"{steps} lost, about {duration(self.lost_seconds)} of work"


def find_crashed_runs(folders: Folders) -> list[CrashedRun]:
    """Return the crashed runs that are not being trained now, the latest first."""
    runs = []
    for path in (*files.usable_entries(folders.loras), *files.usable_entries(folders.models)):
        if not path.is_dir():
            continue
        recover_interrupted(path, folders)
        if safe_paths.leads_out(path) or loras.run_status(path) != "cut off" or is_in_progress(path.name, folders):
            continue
        events = event_file.read_first_and_last(path)
        last = next((event for event in reversed(events) if isinstance(event, Step)), None)
        checkpoints = loras.resumable_checkpoints(path)
        safe_step = checkpoints[-1].step if checkpoints else 0
        saved_at = max((files.modified_at(checkpoint.folder / STATE) for checkpoint in checkpoints), default=0.0)
        step, steps, at = (last.step, last.steps, last.at) if last else (0, 0, files.modified_at(path))
        lost = max(0.0, at - (saved_at or events[0].at)) if step > safe_step else 0.0
        runs.append(CrashedRun(path.name, path, max(at, saved_at), max(safe_step, step), steps, safe_step, lost))
    return sorted(runs, key=lambda run: -run.at)


def keep_run(run: CrashedRun, folders: Folders) -> Path:
    """Make the LoRA of the last complete checkpoint the LoRA of the run, and mark the run as stopped."""
    checkpoints = loras.resumable_checkpoints(run.folder)
    if not checkpoints:
        raise SavingError(f"{run.name!r} crashed before its first checkpoint, so there is nothing to keep.")
    checkpoint, folder = checkpoints[-1], RunFolder(run.folder, folders.logs)
    graph = read_state(checkpoint.folder).get("graph") or []
    partial = folder.empty_weights_folder()
    loras.copy_weights(checkpoint.folder, partial)
    folder.move_into_place(partial)
    files.write_json(run.folder / GRAPH, graph)
    last_entry: dict[str, Any] = dict(graph[-1]) if graph else {}
    log = {
        **{key: last_entry.get(key) for key in ("loss", "learning_rate", "epoch", "smoothed_loss")},
        "current_steps": checkpoint.step,
        "ended": "stopped",
        "ended_because": f"the run crashed, and {checkpoint.folder.name} was kept",
        "steps": run.steps or checkpoint.step,
    }
    # The log says that the run has ended, so it is written last: until then, this can be done anew after a kill.
    files.write_json(run.folder / LOG, log_entry(log))
    folder.recover()
    return run.folder


def discard_run(run: CrashedRun, folders: Folders) -> None:
    """Restore the folder as it was before the run: empty, an earlier LoRA, or the run before it was resumed."""
    journal = read_journal(run.folder)
    steps = [checkpoint.step for checkpoint in loras.resumable_checkpoints(run.folder)]
    if journal is None or journal.began_at_step not in (0, *steps):
        raise SavingError(
            f"{run.name!r} can't be restored to its state before the run, because the checkpoint that it was "
            "resumed from is unknown or no longer exists. You can delete the LoRA instead."
        )
    with hold_run_lock(run.name, folders):
        RunFolder(run.folder, folders.logs).discard()
