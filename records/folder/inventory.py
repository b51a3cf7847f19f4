"""Inventory of LoRAs, checkpoints and backups on disk; and runs that a crash cut off, to keep or to discard."""

from __future__ import annotations

import datetime
import difflib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import SavingError
from ...core.files import folder_size, modified_at, read_json, safe_paths, usable_entries, write_json
from ...core.host import Folders
from ...core.jobs import Step, event_file, progress_of
from ...train_utils import checkpoint_step, duration, natural_key
from . import loras, run_files
from .loras import RunStatus
from .run_folder import RunFolder, hold_run_lock, is_in_progress, read_journal, recover_interrupted

PartKind = Literal["checkpoint", "LoRA only", "backup", "earlier"]


@dataclass(frozen=True)
class LoraPart:
    """A folder in that of a LoRA: a complete or slim checkpoint, a timed backup, or a replaced LoRA."""

    name: str
    kind: PartKind
    step: int | None
    size: int
    folder: Path


@dataclass(frozen=True)
class LoraEntry:
    """A LoRA or unfinished run on disk, with its checkpoints and backups."""

    name: str
    folder: Path
    status: RunStatus | Literal["in progress"]
    model: str
    step: int
    steps: int
    loss: float | None
    when: float
    size: int
    parts: tuple[LoraPart, ...]
    note: str
    damage: tuple[str, ...] = ()  # sentences about values of its records that are damaged

    @property
    def names(self) -> list[str]:
        """The names of the LoRA and of its parts."""
        inside = [part.folder.relative_to(self.folder).as_posix() for part in self.parts]
        return [self.name, *(f"{self.name}/{part}" for part in inside)]

    def as_json(self) -> dict[str, Any]:
        """Return plain values, for other programs."""
        parts = [{**asdict(part), "folder": str(part.folder)} for part in self.parts]
        when = datetime.datetime.fromtimestamp(self.when).astimezone().isoformat(timespec="seconds")
        values = {**asdict(self), "folder": str(self.folder), "when": when, "parts": parts}
        return {"standing" if key == "status" else key: value for key, value in values.items()}


def list_entries(folders: Folders) -> list[LoraEntry]:
    """Return all LoRAs and runs, in natural order; a run from its start on."""
    for path in usable_entries(folders.loras):
        recover_interrupted(path, folders)
    entries = []
    for path in usable_entries(folders.loras):
        if path.is_dir() and loras.is_listed(path):
            is_run = loras.has_lora(path) or (path / run_files.PARAMETERS).is_file() or bool(_parts(path))
            if is_run or is_in_progress(path.name, folders):
                entries.append(read_entry(path, folders))
    return sorted(entries, key=lambda entry: natural_key(entry.name))


def read_entry(folder: Path, folders: Folders) -> LoraEntry:
    """Read the folder of a LoRA."""
    damage: list[str] = []
    log, checkpoints = run_files.read_log(folder, damage), loras.resumable_checkpoints(folder)
    parts, saved = tuple(_parts(folder)), checkpoints[-1].step if checkpoints else 0
    # A run that has no log yet, or was cut off, is as far as its last events say.
    now = progress_of([] if log else event_file.read_first_and_last(folder))
    # The smoothed loss, if there is one: the loss of a single step says little.
    losses = (log.get("smoothed_loss"), now.smoothed_loss, log.get("loss"))
    model = log.get("base_model_name") or ""
    # A LoRA made elsewhere has no log, and a run that crashed has its config in its checkpoints only.
    for candidate in (folder, *(part.folder for part in parts)) if not model else ():
        if path := read_json(candidate / "adapter_config.json", {}).get("base_model_name_or_path"):
            model = str(path).replace("\\", "/").rstrip("/").rpartition("/")[2]
            break
    try:
        when = datetime.datetime.fromisoformat(str(log.get("ended_at"))).timestamp()
    except (ValueError, OverflowError, OSError):  # the last two for years that the system does not know
        when = max(map(modified_at, (folder, *folder.iterdir())))
    return LoraEntry(
        name=folder.name,
        folder=folder,
        status="in progress" if is_in_progress(folder.name, folders) else loras.run_status(folder),
        model=model,
        step=log.get("current_steps") or now.step or saved,
        steps=log.get("steps") or now.steps,
        loss=next((float(loss) for loss in losses if loss is not None), None),
        when=when,
        size=folder_size(folder),
        parts=parts,
        note=run_files.read_note(folder),
        damage=tuple(damage),
    )


def normalize_name(typed: str) -> str:
    """Normalize a typed name: a console may put backslashes between folders and a slash at the end."""
    return typed.replace("\\", "/").rstrip("/")


def find_folder(name: str, folders: Folders) -> Path:
    """Return the folder of 'story' or 'story/checkpoint-40'; a SavingError suggests similar names."""
    lora, _, part = normalize_name(name).partition("/")
    names = [
        path.name for path in usable_entries(folders.loras) if path.is_dir() and not run_files.is_hidden(path)
    ]
    if lora not in names:
        similar = " or ".join(map(repr, difflib.get_close_matches(lora, names, n=3)))
        hint = f" Did you mean {similar}?" if similar else ""
        raise SavingError(f"There is no LoRA {lora!r} in {folders.loras}.{hint}")
    folder = safe_paths.child(folders.loras, lora, "LoRA")
    recover_interrupted(folder, folders)
    if not part:
        return folder
    parts = {p.folder.relative_to(folder).as_posix(): p.folder for p in _parts(folder)}
    if part not in parts:
        hint = f"Available: {', '.join(parts)}." if parts else "It has no other checkpoints either."
        raise SavingError(f"{lora!r} has no checkpoint {part!r}. {hint}")
    return parts[part]


def find_run(name: str, folders: Folders) -> Path:
    """Return the folder of the run with this name, or of the run that owns the checkpoint with this name."""
    return folders.loras / find_folder(name, folders).relative_to(folders.loras).parts[0]


def slimmable_checkpoints(folder: Path) -> list[Path]:
    """Return the complete checkpoints of a run that may be slimmed, or the chosen one."""
    if _kind(folder) in ("checkpoint", "backup"):
        return [folder]
    checkpoints = loras.checkpoints(folder)
    best = next((c.step for c in checkpoints if c.folder.name.endswith(run_files.BEST_SUFFIX)), 0)
    return [c.folder for c in loras.surplus_checkpoints(checkpoints, keep=1, best=best)]


def _parts(folder: Path) -> list[LoraPart]:
    """Return checkpoints by their step, then backups, then replaced LoRAs."""
    parts = []
    for path in (*loras.checkpoint_folders(folder), *run_files.replaced_folders(folder)):
        kind, is_here = _kind(path), path.is_dir() and not any(map(safe_paths.leads_out, (path, path.parent)))
        if kind is not None and is_here:
            parts.append(LoraPart(path.name, kind, checkpoint_step(path.name), folder_size(path), path))
    kinds = ("checkpoint", "LoRA only", "backup", "earlier")
    return sorted(parts, key=lambda p: (kinds.index(p.kind) // 2, p.step or 0, natural_key(p.name)))


def _kind(folder: Path) -> PartKind | None:
    if folder.name.startswith(run_files.REPLACED_PREFIX):
        return "earlier"
    if checkpoint_step(folder.name) is None:
        return None
    if (folder / run_files.STATE).is_file():
        return "backup" if folder.parent.name == run_files.BACKUP_FOLDER else "checkpoint"
    return "LoRA only" if loras.has_lora(folder) else None


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
    for path in (*usable_entries(folders.loras), *usable_entries(folders.models)):
        if not path.is_dir():
            continue
        recover_interrupted(path, folders)
        if safe_paths.leads_out(path) or loras.run_status(path) != "cut off" or is_in_progress(path.name, folders):
            continue
        events = event_file.read_first_and_last(path)
        last = next((event for event in reversed(events) if isinstance(event, Step)), None)
        checkpoints = loras.resumable_checkpoints(path)
        safe_step = checkpoints[-1].step if checkpoints else 0
        saved_at = max((modified_at(c.folder / run_files.STATE) for c in checkpoints), default=0.0)
        step, steps, at = (last.step, last.steps, last.at) if last else (0, 0, modified_at(path))
        lost = max(0.0, at - (saved_at or events[0].at)) if step > safe_step else 0.0
        runs.append(CrashedRun(path.name, path, max(at, saved_at), max(safe_step, step), steps, safe_step, lost))
    return sorted(runs, key=lambda run: -run.at)


def keep_run(run: CrashedRun, folders: Folders) -> Path:
    """Make the LoRA of the last complete checkpoint the LoRA of the run, and mark the run as stopped."""
    checkpoints = loras.resumable_checkpoints(run.folder)
    if not checkpoints:
        raise SavingError(f"{run.name!r} crashed before its first checkpoint, so there is nothing to keep.")
    checkpoint, folder = checkpoints[-1], RunFolder(run.folder, folders.logs)
    graph = run_files.read_state(checkpoint.folder).get("graph") or []
    partial = folder.empty_weights_folder()
    loras.copy_weights(checkpoint.folder, partial)
    folder.move_into_place(partial)
    write_json(run.folder / run_files.GRAPH, graph)
    last_entry: dict[str, Any] = dict(graph[-1]) if graph else {}
    log = {
        **{key: last_entry.get(key) for key in ("loss", "learning_rate", "epoch", "smoothed_loss")},
        "current_steps": checkpoint.step,
        "ended": "stopped",
        "ended_because": f"the run crashed, and {checkpoint.folder.name} was kept",
        "kept_after_crash": True,
        "steps": run.steps or checkpoint.step,
    }
    # The log says that the run has ended, so it is written last: until then, this can be done anew after a kill.
    write_json(run.folder / run_files.LOG, run_files.log_entry(log))
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
