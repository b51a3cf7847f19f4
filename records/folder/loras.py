"""LoRAs on disk, the status of their runs, and their checkpoints: which can resume, which are thinned out."""

from __future__ import annotations

import re
import shutil
from contextlib import suppress
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Literal

from ...core.errors import SavingError
from ...core.files import PART_SUFFIX, folder_size, move_atomically, remove_folder, safe_paths, usable_entries
from ...train_utils import checkpoint_name, checkpoint_step, natural_key
from . import run_files

ADAPTER_WEIGHTS = ("adapter_model.safetensors", "adapter_model.bin")
ADAPTER_FILES = ("adapter_config.json", *ADAPTER_WEIGHTS)
MODEL_WEIGHTS = ("model.safetensors", "model.safetensors.index.json")
MODEL_TENSORS = re.compile(r"model(-\d+-of-\d+)?\.safetensors")
# What the Trainer of transformers and we write into a checkpoint beside its weights.
TRAINING_STATE_PREFIXES = (
    *("optimizer.", "scheduler.", "scaler.", "rng_state"),
    *("trainer_state.", "training_args.", "run_state."),
)
BACKUPS_KEPT = 2

RunStatus = Literal["nothing", "finished", "stopped", "failed", "cut off", "made elsewhere"]


@dataclass(frozen=True)
class Checkpoint:
    """A complete checkpoint, from which a run can resume."""

    step: int
    folder: Path


def list_loras(loras: Path) -> list[str]:
    """Return the names of the LoRAs that can be loaded, in natural order."""
    names = [p.name for p in usable_entries(loras) if has_lora(p) and is_listed(p)]
    return sorted(names, key=natural_key)


def newest_first(loras: Path) -> list[str]:
    return sorted(list_loras(loras), key=lambda name: -(loras / name).stat().st_mtime)


def list_loadable(loras: Path) -> list[str]:
    """Return everything that can be loaded: the LoRAs, each followed by its checkpoints and backups."""
    names = []
    for run in sorted(usable_entries(loras), key=lambda path: natural_key(path.name)):
        if run.is_dir() and is_listed(run):
            parts = sorted(checkpoint_folders(run), key=lambda path: natural_key(path.name))
            loadable = [path for path in (run, *parts) if has_lora(path) and not safe_paths.leads_out(path)]
            names += [path.relative_to(loras).as_posix() for path in loadable]
    return names


def is_listed(folder: Path) -> bool:
    """Return whether a folder among the LoRAs is listed: not if it is hidden or a link to another place."""
    return not run_files.is_hidden(folder) and not safe_paths.leads_out(folder)


def find_lora(name: str, loras: Path) -> Path:
    """Return the folder of a LoRA by its name, or of a checkpoint or backup of it (NAME/checkpoint-40)."""
    path = name.replace("\\", "/").rstrip("/")
    folder = safe_paths.descendant(loras, path, "LoRA")
    run = loras / path.partition("/")[0]
    # Only folders that a list shows: a name from a page must not reach any other folder with weights.
    known_folders = (run, *checkpoint_folders(run), *run_files.replaced_folders(run))
    if not run_files.is_hidden(run) and has_lora(folder) and folder in known_folders:
        return folder
    if folder.is_dir() and folder == run:
        raise SavingError(f"{name!r} has no saved LoRA yet. If its run is in progress, save a checkpoint first.")
    names = ", ".join(list_loras(loras)) or "none"
    raise SavingError(f"There is no LoRA {name!r} in {loras}. Available: {names}.")


def has_lora(folder: Path) -> bool:
    return any((folder / name).is_file() for name in ADAPTER_WEIGHTS)


def has_weights(folder: Path) -> bool:
    """Return whether a folder holds a LoRA or a whole model."""
    return has_lora(folder) or any((folder / name).is_file() for name in MODEL_WEIGHTS)


def copy_weights(checkpoint: Path, folder: Path) -> None:
    """Copy the LoRA or the whole model of a checkpoint into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    for file in weight_files(checkpoint):
        shutil.copyfile(file, folder / file.name)


def weight_files(folder: Path) -> list[Path]:
    """Return the files of the LoRA or the whole model in a checkpoint, without the training state."""
    if has_lora(folder):
        return [folder / name for name in ADAPTER_FILES if (folder / name).is_file()]
    return [p for p in folder.iterdir() if p.is_file() and not p.name.startswith(TRAINING_STATE_PREFIXES)]


def holds_tensors(name: str) -> bool:
    """Return whether a file of this name holds the weights of a LoRA, a whole model or a shard of it."""
    return name in ADAPTER_WEIGHTS or MODEL_TENSORS.fullmatch(name) is not None


def weight_names(folder: Path) -> set[str]:
    """Return the names of the files in a folder that hold weights, with the index of the shards."""
    return {file.name for file in folder.iterdir() if holds_tensors(file.name) or file.name in MODEL_WEIGHTS}


def run_status(folder: Path) -> RunStatus:
    """Return the status of the run in this folder."""
    if ended := run_files.read_log(folder).get("ended"):
        return ended
    if resumable_checkpoints(folder) or (folder / run_files.JOURNAL).is_file():
        return "cut off"
    return "made elsewhere" if has_weights(folder) else "nothing"


def output_kind(folder: Path) -> Literal["LoRA", "model"]:
    """Return whether this folder is for a LoRA or a whole model."""
    return "model" if has_weights(folder) and not has_lora(folder) else "LoRA"


def describe_folder(folder: Path) -> str:
    """Describe a folder: 'a finished LoRA'."""
    noun = output_kind(folder)
    words: dict[RunStatus, str] = {
        "finished": f"a finished {noun}",
        "stopped": f"the {noun} of a run that was stopped",
        "failed": f"the {noun} of a run that failed",
        "cut off": "a run that was interrupted by a crash",
        "made elsewhere": f"a {noun} made elsewhere",
        "nothing": "a folder",
    }
    return words[run_status(folder)]


def checkpoint_folders(run: Path) -> list[Path]:
    """Return the folders of complete and slim checkpoints, then those of backups."""
    paths = (*run.glob("checkpoint-*"), *run.glob(f"{run_files.BACKUP_FOLDER}/checkpoint-*"))
    return [path for path in paths if not safe_paths.has_impossible_character(path.name)]


def checkpoints(folder: Path) -> list[Checkpoint]:
    """Return the complete checkpoints of a run, oldest first. A folder gets its name only when it is complete."""
    complete = []
    for path in usable_entries(folder):
        step = checkpoint_step(path.name)
        if step is not None and (path / run_files.STATE).is_file():
            complete.append(Checkpoint(step, path))
    return sorted(complete, key=lambda c: (c.step, c.folder.name))


def resumable_checkpoints(folder: Path) -> list[Checkpoint]:
    """Return all checkpoints and backups from which a run can resume, oldest first."""
    return sorted([*checkpoints(folder / run_files.BACKUP_FOLDER), *checkpoints(folder)], key=lambda c: c.step)


def folders_of_step(folder: Path, step: int) -> list[Path]:
    """Return the folders of this step: complete and slim checkpoints, and backups."""
    return [path for path in checkpoint_folders(folder) if checkpoint_step(path.name) == step]


def checkpoints_with_weights(folder: Path) -> list[Path]:
    """Return complete and slim checkpoints and backups, oldest first."""
    folders = [path for path in checkpoint_folders(folder) if has_weights(path)]
    return sorted(folders, key=lambda path: checkpoint_step(path.name) or 0)


def remove_checkpoint(checkpoint: Path) -> None:
    """Remove a checkpoint or a folder of them."""
    # It is renamed first, so that a kill in between leaves nothing that looks complete.
    remove_folder(move_atomically(checkpoint, checkpoint.with_name(f".{checkpoint.name}{PART_SUFFIX}")))


def slim_checkpoint(checkpoint: Path) -> int:
    """Reduce a checkpoint to its LoRA, to load but not to resume from. Return the bytes freed."""
    if not has_weights(checkpoint):
        raise SavingError(f"{checkpoint} has no LoRA, so nothing would remain. Delete it instead.")
    before, state = folder_size(checkpoint), checkpoint / run_files.STATE
    marker = state.with_name(state.name + PART_SUFFIX)
    if state.is_file():  # marks it as complete; after a kill in between, its new name says what to finish
        move_atomically(state, marker)
    for item in [p for p in checkpoint.iterdir() if p != marker and p.name.startswith(TRAINING_STATE_PREFIXES)]:
        item.unlink()
    marker.unlink(missing_ok=True)
    return before - folder_size(checkpoint)


def thin_checkpoints(folder: Path, keep: int, best: int, start_step: int = 0) -> None:
    """Slim all checkpoints but the newest `keep`, those saved by hand and that of the best step."""
    # Checkpoints up to the step `start_step` are left alone: a run that resumes from it may still be discarded.
    # Backups are removed whole, not slimmed: they are there to resume from.
    backups = [backup for backup in checkpoints(folder / run_files.BACKUP_FOLDER) if backup.step > start_step]
    for backup in backups[:-BACKUPS_KEPT]:
        remove_checkpoint(backup.folder)
    for path in folder.glob(f"checkpoint-*{run_files.BEST_SUFFIX}"):
        step = checkpoint_step(path.name)
        if step is not None and step > start_step and step != best:  # it is no longer the best
            move_atomically(path, folder / checkpoint_name(step, ""))
    own = [checkpoint for checkpoint in checkpoints(folder) if checkpoint.step > start_step]
    for checkpoint in surplus_checkpoints(own, keep, best):
        slim_checkpoint(checkpoint.folder)


def surplus_checkpoints(checkpoints: list[Checkpoint], keep: int, best: int) -> list[Checkpoint]:
    """Return the checkpoints to slim, of a list from old to new."""
    removable = [c for c in checkpoints if not c.folder.name.endswith(run_files.MANUAL_SUFFIX) and c.step != best]
    return removable[: max(0, len(removable) - keep)]


def free_disk_space(folder: Path, start: Checkpoint | None) -> None:
    """Free space on a full disk; the newest checkpoint, those saved by hand and the start stay complete."""
    # Deleting may fail on a full disk, too. Then the caller tries with the space that there is.
    with suppress(OSError, SavingError):
        for backup in checkpoints(folder / run_files.BACKUP_FOLDER)[:-1]:
            if backup != start:
                remove_checkpoint(backup.folder)
        for checkpoint in surplus_checkpoints(checkpoints(folder), keep=1, best=start.step if start else 0):
            slim_checkpoint(checkpoint.folder)


def gguf_file(folder: Path) -> Path:
    """Return where a LoRA or checkpoint is exported to: a GGUF file in the folder of its run."""
    if checkpoint_step(folder.name) is None:
        return folder / f"{folder.name}.gguf"
    run = run_files.run_folder_of(folder)
    return run / f"{run.name}-{folder.name}.gguf"


def free_name(loras: Path, name: str) -> str:
    """Return `name` with the first number from 2 that is not taken."""
    names = (f"{name}-{number}" for number in count(2))
    return next(free for free in names if not (loras / free).exists())
