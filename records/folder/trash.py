"""Trash for LoRAs and their parts. An item keeps its path in a folder named after the time, until it is emptied.

loras/trash-np/2026-11-21 22.15.04/lora/story                  a LoRA
loras/trash-np/2026-11-21 22.17.30/part/story/checkpoint-40    a checkpoint or backup of one
"""

from __future__ import annotations

import datetime
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ...core.errors import BusyError, SavingError
from ...core.files import folder_size, modified_at, move_atomically, remove_folder, safe_paths
from ...core.host import Folders
from . import inventory
from .loras import free_name
from .run_files import BACKUP_FOLDER, HIDDEN_SUFFIX, PARAMETERS
from .run_folder import refuse_in_progress

TIME_FORMAT = "%Y-%m-%d %H.%M.%S"
TRASH_FOLDER = f"trash{HIDDEN_SUFFIX}"
LORA_FOLDER, PART_FOLDER = "lora", "part"


@dataclass(frozen=True)
class TrashItem:
    """An item in the trash: 'story' or 'story/checkpoint-40', and when it was moved there."""

    name: str
    when: str
    folder: Path

    @property
    def size(self) -> int:
        return folder_size(self.folder)


def list_trash(folders: Folders) -> list[TrashItem]:
    """Return the items in the trash, the latest first."""
    trash = safe_paths.child(folders.loras, TRASH_FOLDER, "Trash")
    paths = [
        *trash.glob(f"*/{LORA_FOLDER}/*"),
        *trash.glob(f"*/{PART_FOLDER}/*/*"),
        *trash.glob(f"*/{PART_FOLDER}/*/{BACKUP_FOLDER}/*"),
    ]
    items = []
    for path in paths:
        if path.name != BACKUP_FOLDER and not safe_paths.has_impossible_character(str(path.relative_to(trash))):
            time, _, name = path.relative_to(trash).as_posix().split("/", 2)
            items.append(TrashItem(name, time, path))
    return sorted(items, key=lambda item: (item.when, item.name), reverse=True)


def move_to_trash(name: str, folders: Folders, *, loaded: Collection[str] = ()) -> TrashItem:
    """Move a LoRA or a part of one ('story/checkpoint-40') to the trash. `loaded` are the LoRAs on the model."""
    folder = inventory.find_folder(name, folders)
    name = folder.relative_to(folders.loras).as_posix()
    refuse_in_progress(name.partition("/")[0], folders)
    if in_use := [path for path in loaded if path == name or path.startswith(f"{name}/")]:
        raise BusyError(f"{in_use[0]!r} is attached to the model. Detach it first.")
    trash = safe_paths.child(folders.loras, TRASH_FOLDER, "Trash")
    time = datetime.datetime.now().strftime(TIME_FORMAT)
    time = free_name(trash, time) if (trash / time).exists() else time
    target = trash / time / (PART_FOLDER if "/" in name else LORA_FOLDER) / name
    with _changing(folder, target.parent, folders):
        target.parent.mkdir(parents=True, exist_ok=True)
        move_atomically(folder, target)
    return TrashItem(name, time, target)


def restore_item(item: TrashItem, folders: Folders) -> Path:
    """Move an item back to its place, under a free name if that is taken."""
    target = safe_paths.descendant(folders.loras, item.name, "LoRA")
    lora, _, part = item.name.partition("/")
    if part and not (folders.loras / lora).is_dir():
        raise SavingError(f"{item.name!r} is part of {lora!r}, which is in the trash. Restore {lora!r} first.")
    if part:
        refuse_in_progress(lora, folders)
        # A part must not get into a run that was started or resumed after the part was deleted. The name of the
        # folder has no fractions of a second.
        deleted_at = datetime.datetime.strptime(item.when[: len("2026-11-21 22.15.04")], TIME_FORMAT).timestamp()
        if modified_at(folders.loras / lora / PARAMETERS) >= deleted_at + 1:
            raise SavingError(
                f"{item.name!r} can't be restored, because {lora!r} was trained after it was deleted, so it may "
                f"belong to another run. Its files are in {item.folder}."
            )
    # A new LoRA may have taken the name in the meantime.
    if target.exists():
        target = target.with_name(free_name(target.parent, target.name))
    with _changing(item.folder, item.folder.parent, folders):
        target.parent.mkdir(parents=True, exist_ok=True)
        return move_atomically(item.folder, target)


def empty_trash(folders: Folders, name: str = "") -> int:
    """Delete all items in the trash, or those of this name; return the bytes freed."""
    freed = 0
    for item in [item for item in list_trash(folders) if name in ("", item.name)]:
        freed += item.size
        with _changing(item.folder, item.folder.parent, folders):
            item.folder.unlink() if item.folder.is_symlink() else remove_folder(item.folder)
    return freed


@contextmanager
def _changing(folder: Path, place: Path, folders: Folders) -> Iterator[None]:
    """Say why a folder can't be moved or removed; afterwards remove `place` and its parents if they are empty."""
    try:
        yield
    except OSError as error:
        raise SavingError(
            f"{folder} can't be moved or removed: {error.strerror or error}. If something has one of its "
            "files open, such as a chat with this LoRA or a file manager, close it and try again."
        ) from error
    finally:
        while place != folders.loras and place.is_dir() and not any(place.iterdir()):
            place.rmdir()
            place = place.parent
