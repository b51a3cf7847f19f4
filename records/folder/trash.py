"""Trash for LoRAs and their parts. An item keeps its path in a folder named after the time, until it is emptied.

loras/trash-np/2026-11-21 22.15.04/lora/story                  a LoRA
loras/trash-np/2026-11-21 22.17.30/part/story/checkpoint-40    a checkpoint or backup of one
"""

from __future__ import annotations

import datetime
from collections.abc import Collection
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import BusyError, SavingError
from ...core.files import cleared_away, moved, safe_paths
from ...core.host import Folders
from . import inventory
from .filenames import HIDDEN, TIMED
from .loras import free_name, size_on_disk
from .run_lock import is_in_progress

TRASH = f"trash{HIDDEN}"
LORA, PART = "lora", "part"


@dataclass(frozen=True)
class Thrown:
    """An item in the trash: 'story' or 'story/checkpoint-40', and when it was moved there."""

    name: str
    when: str
    folder: Path

    @property
    def size(self) -> int:
        return size_on_disk(self.folder)


def thrown(folders: Folders) -> list[Thrown]:
    """Return the items in the trash, the latest first."""
    trash = safe_paths.child(folders.loras, TRASH, "Trash")
    paths = [*trash.glob(f"*/{LORA}/*"), *trash.glob(f"*/{PART}/*/*"), *trash.glob(f"*/{PART}/*/{TIMED}/*")]
    paths = [p for p in paths if p.name != TIMED]
    items = [Thrown(p.relative_to(trash).as_posix().split("/", 2)[2], _time_of(p, trash), p) for p in paths]
    return sorted(items, key=lambda item: (item.when, item.name), reverse=True)


def throw_away(name: str, folders: Folders, *, on: Collection[str] = ()) -> Thrown:
    """Move a LoRA or a part of one ('story/checkpoint-40') to the trash. `on` are the LoRAs on the model."""
    folder = inventory.named(name, folders)
    name = folder.relative_to(folders.loras).as_posix()
    refuse_in_use(name, folders, on)
    time_folder = _new_time_folder(safe_paths.child(folders.loras, TRASH, "Trash"))
    target = time_folder / (PART if "/" in name else LORA) / name
    return Thrown(name, time_folder.name, _move(folder, target, folders))


def refuse_in_use(name: str, folders: Folders, on: Collection[str] = ()) -> None:
    """Raise BusyError if a LoRA is being trained or is on the model."""
    lora = name.partition("/")[0]
    if is_in_progress(lora, folders):
        raise BusyError(f"{lora!r} is being trained just now. Stop the run first, or wait for its end.")
    if in_use := next((loaded for loaded in on if loaded == name or loaded.startswith(f"{name}/")), ""):
        raise BusyError(f"{in_use!r} is on the model just now. Take it off first.")


def restore(item: Thrown, folders: Folders) -> Path:
    """Move an item back to its place, under a free name if that is taken."""
    target = safe_paths.descendant(folders.loras, item.name, "LoRA")
    lora, _, part = item.name.partition("/")
    if part and not (folders.loras / lora).is_dir():
        raise SavingError(f"{item.name!r} belongs to {lora!r}, which is gone. Restore that first.")
    if target.exists():
        target = target.with_name(free_name(target.parent, target.name))
    restored = _move(item.folder, target, folders)
    _remove_empty_folders(item.folder.parent, folders)
    return restored


def empty(folders: Folders, name: str = "") -> int:
    """Delete all items in the trash, or those of this name; return the bytes freed."""
    freed = 0
    for item in [item for item in thrown(folders) if name in ("", item.name)]:
        freed += item.size
        _delete(item.folder)
        _remove_empty_folders(item.folder.parent, folders)
    return freed


def _time_of(path: Path, trash: Path) -> str:
    return path.relative_to(trash).parts[0]


def _new_time_folder(trash: Path) -> Path:
    time = datetime.datetime.now().strftime("%Y-%m-%d %H.%M.%S")
    return trash / (free_name(trash, time) if (trash / time).exists() else time)


def _move(folder: Path, target: Path, folders: Folders) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return moved(folder, target)
    except OSError as error:
        _remove_empty_folders(target.parent, folders)
        raise _in_use_error(folder, error) from error


def _delete(folder: Path) -> None:
    try:
        folder.unlink() if folder.is_symlink() else cleared_away(folder)
    except OSError as error:
        raise _in_use_error(folder, error) from error


def _in_use_error(folder: Path, error: OSError) -> SavingError:
    return SavingError(
        f"{folder} cannot be moved or removed: {error.strerror or error}. If a program has a file of it open "
        "(a chat with this LoRA, a file manager), close that and try again."
    )


def _remove_empty_folders(folder: Path, folders: Folders) -> None:
    """Remove this folder and its parents in the trash, as far as they are empty."""
    while folder != folders.loras and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
