"""Runs that were cut off by a crash: what was lost, and how to keep or discard them."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import modified_at, safe_paths, usable_entries, write_json
from ...core.host import Folders
from ...train_utils import duration
from . import loras
from .filenames import GRAPH, LOG, STATE
from .heartbeat import read_heartbeat
from .journal import read_journal
from .loras import Checkpoint
from .run_files import log_entry
from .run_folder import RunFolder, recover_interrupted
from .run_lock import hold_run_lock, is_in_progress
from .run_records import read_state


@dataclass(frozen=True)
class CrashedRun:
    """A crashed run. It can resume from `safe_step`; `at` is the time of its last heartbeat or checkpoint."""

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
    paths = [
        path for parent in (folders.loras, folders.models) for path in usable_entries(parent) if path.is_dir()
    ]
    for path in paths:
        recover_interrupted(path, folders)
    candidates = [run for path in paths if not safe_paths.leads_out(path) and (run := _crashed_run(path))]
    runs = [run for run in candidates if not is_in_progress(run.name, folders)]
    return sorted(runs, key=lambda run: -run.at)


def keep_run(run: CrashedRun, folders: Folders) -> Path:
    """Make the LoRA of the last complete checkpoint the LoRA of the run, and mark the run as stopped."""
    checkpoints = loras.resumable_checkpoints(run.folder)
    if not checkpoints:
        raise SavingError(f"{run.name!r} crashed before its first checkpoint, so there is nothing to keep.")
    checkpoint, folder = checkpoints[-1], RunFolder(run.folder, folders.logs)
    state = read_state(checkpoint.folder)
    partial = folder.empty_weights_folder()
    loras.copy_weights(checkpoint.folder, partial)
    folder.move_into_place(partial)
    graph = state.get("graph") or []
    write_json(run.folder / GRAPH, graph)
    write_json(run.folder / LOG, log_entry(_log_values(run, checkpoint, dict(graph[-1]) if graph else {})))
    folder.recover()
    return run.folder


def discard_run(run: CrashedRun, folders: Folders) -> None:
    """Restore the folder as it was before the run: empty, an earlier LoRA, or the run before it was resumed."""
    journal = read_journal(run.folder)
    steps = [checkpoint.step for checkpoint in loras.resumable_checkpoints(run.folder)]
    if journal is None or journal.began_at_step not in (0, *steps):
        reason = (
            "it isn't known from which step it was resumed"
            if journal is None
            else "the checkpoint that it was resumed from no longer exists"
        )
        raise SavingError(
            f"{run.name!r} can't be restored to its state before the run, because {reason}. You can delete the "
            "LoRA instead."
        )
    with hold_run_lock(run.name, folders):
        RunFolder(run.folder, folders.logs).discard()


def _crashed_run(folder: Path) -> CrashedRun | None:
    beat, checkpoints = read_heartbeat(folder), loras.resumable_checkpoints(folder)
    if loras.run_status(folder) != "cut off":
        return None
    step = checkpoints[-1].step if checkpoints else 0
    states = [modified_at(checkpoint.folder / STATE) for checkpoint in checkpoints]
    last_seen = max([beat.at if beat else modified_at(folder), *states])
    if beat is None:
        return CrashedRun(folder.name, folder, last_seen, step, 0, step, 0.0)
    lost = beat.unsaved_seconds if beat.step > step else 0.0
    return CrashedRun(folder.name, folder, last_seen, max(step, beat.step), beat.steps, step, lost)


def _log_values(run: CrashedRun, checkpoint: Checkpoint, last_entry: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: last_entry.get(key) for key in ("loss", "learning_rate", "epoch", "smoothed_loss")},
        "current_steps": checkpoint.step,
        "ended": "stopped",
        "ended_because": f"the run crashed, and {checkpoint.folder.name} was kept",
        "steps": run.steps or checkpoint.step,
    }
