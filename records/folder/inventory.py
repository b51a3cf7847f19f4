"""Inventory of LoRAs, checkpoints and backups on disk, with the status of each run and its size."""

from __future__ import annotations

import datetime
import difflib
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Literal

from ...core.errors import SavingError
from ...core.files import modified_at, read_json, safe_paths, usable_entries
from ...core.host import Folders
from ...core.jobs import event_file, progress_of
from ...train_utils import checkpoint_step, natural_key
from . import loras, run_files
from .loras import RunStatus
from .run_folder import is_in_progress, recover_interrupted

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
        size=loras.size_on_disk(folder),
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
            parts.append(LoraPart(path.name, kind, checkpoint_step(path.name), loras.size_on_disk(path), path))
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
