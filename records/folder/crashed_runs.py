"""Runs that were cut off by a crash: when, and what is lost; to be kept as they are, or thrown away."""

from __future__ import annotations

import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ...core.errors import SavingError
from ...core.files import safe_paths, write_json
from ...core.host import Folders
from ...train_utils import duration
from . import loras
from .filenames import GRAPH, LOG, STATE
from .heartbeat import Beat, last_beat
from .loras import Checkpoint
from .run_folder import RunFolder
from .run_lock import is_in_progress
from .training_log import log_entry


@dataclass(frozen=True)
class CutOff:
    """A run to be offered: it goes on from `safe_step`; `at` is when it was seen last."""

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
    def lost(self) -> str:
        """What is lost when it goes on, in words."""
        if not self.lost_steps:
            return "nothing is lost"
        steps = "1 step is" if self.lost_steps == 1 else f"{self.lost_steps} steps are"
        return f"{steps} lost, about {duration(self.lost_seconds)} of work"


def cut_off_runs(folders: Folders) -> list[CutOff]:
    """Those that nobody is training now, the last one first."""
    homes = [home for home in (folders.loras, folders.models) if home.is_dir()]
    there = [path for home in homes for path in home.iterdir() if path.is_dir()]
    found = [_looked_at(path) for path in there if not safe_paths.leads_out(path)]
    runs = [run for run in found if run is not None and not is_in_progress(run.name, folders)]
    return sorted(runs, key=lambda run: -run.at)


def keep(run: CutOff, folders: Folders) -> Path:
    """The LoRA of the last whole checkpoint becomes the LoRA; the run counts as stopped from now on."""
    safe = loras.to_go_on_from(run.folder)
    if not safe:
        raise SavingError(f"{run.name!r} was cut off before its first checkpoint: there is nothing to keep.")
    state = _state(safe[-1])
    folder = RunFolder(run.folder, folders.logs)
    (folder.aside / "lora").mkdir(parents=True, exist_ok=True)
    for file in loras.itself(safe[-1].folder):
        shutil.copyfile(file, folder.aside / "lora" / file.name)
    folder.keep(folder.aside / "lora")
    graph = state.get("graph") or [{}]
    write_json(run.folder / GRAPH, graph)
    write_json(run.folder / LOG, log_entry(_entry(run, safe[-1], graph[-1])))
    return run.folder


def throw_away(run: CutOff, folders: Folders) -> None:
    """What stood there before the run is there again: nothing, an earlier LoRA, or the earlier part of the run."""
    beat = last_beat(run.folder) or Beat(0, 0, 0, 0)
    started = [c for c in loras.to_go_on_from(run.folder) if c.step == beat.began_at_step]
    if beat.began_at_step and not started:
        raise SavingError(f"{run.name!r}: the checkpoint that it went on from is gone. Delete the LoRA instead.")
    start = started[0] if started else None
    RunFolder(run.folder, folders.logs, start=start).discard()


def _looked_at(folder: Path) -> CutOff | None:
    beat, safe = last_beat(folder), loras.to_go_on_from(folder)
    ended = loras.standing(folder) not in ("cut off", "nothing")
    if ended or (beat is None and not safe):
        return None
    step = safe[-1].step if safe else 0
    seen = max([beat.at if beat else 0.0, *((c.folder / STATE).stat().st_mtime for c in safe)])
    if beat is None:
        return CutOff(folder.name, folder, seen, step, 0, step, 0.0)
    lost = beat.unsaved_seconds if beat.step > step else 0.0
    return CutOff(folder.name, folder, seen, max(step, beat.step), beat.steps, step, lost)


def _state(checkpoint: Checkpoint) -> dict[str, Any]:
    try:
        state = json.loads((checkpoint.folder / STATE).read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return state if isinstance(state, dict) else {}


def _entry(run: CutOff, safe: Checkpoint, last: dict[str, Any]) -> dict[str, Any]:
    return {
        **{key: last.get(key) for key in ("loss", "learning_rate", "epoch", "smoothed_loss")},
        "current_steps": safe.step,
        "ended": "stopped",
        "ended_because": f"it was cut off and kept as it was at {safe.folder.name}",
        "steps": run.steps or safe.step,
    }
