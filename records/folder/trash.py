"""Deleting with undo: what goes lies under its own path in a folder of that moment, until the trash is emptied.

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
    """Something in the trash: 'story' or 'story/checkpoint-40', and the moment it went there."""

    name: str
    when: str
    folder: Path

    @property
    def size(self) -> int:
        return size_on_disk(self.folder)


def thrown(folders: Folders) -> list[Thrown]:
    """What is in the trash, the latest first."""
    trash = safe_paths.child(folders.loras, TRASH, "Trash")
    found = [*trash.glob(f"*/{LORA}/*"), *trash.glob(f"*/{PART}/*/*"), *trash.glob(f"*/{PART}/*/{TIMED}/*")]
    found = [p for p in found if p.name != TIMED]
    things = [Thrown(p.relative_to(trash).as_posix().split("/", 2)[2], _moment(p, trash), p) for p in found]
    return sorted(things, key=lambda thing: (thing.when, thing.name), reverse=True)


def throw_away(name: str, folders: Folders, *, on: Collection[str] = ()) -> Thrown:
    """Move a LoRA, or a part of one ('story/checkpoint-40'), to the trash; `on` are on the model now."""
    folder = inventory.named(name, folders)
    name = folder.relative_to(folders.loras).as_posix()
    refuse_in_use(name, folders, on)
    moment = _free_moment(safe_paths.child(folders.loras, TRASH, "Trash"))
    target = moment / (PART if "/" in name else LORA) / name
    return Thrown(name, moment.name, _moved(folder, target, folders))


def refuse_in_use(name: str, folders: Folders, on: Collection[str] = ()) -> None:
    """BusyError where it is being trained, or is on the model."""
    lora = name.partition("/")[0]
    if is_in_progress(lora, folders):
        raise BusyError(f"{lora!r} is being trained just now. Stop the run first, or wait for its end.")
    if used := next((one for one in on if one == name or one.startswith(f"{name}/")), ""):
        raise BusyError(f"{used!r} is on the model just now. Take it off first.")


def restore(thing: Thrown, folders: Folders) -> Path:
    """Back to where it was; where something stands there now, under a free name."""
    target = safe_paths.descendant(folders.loras, thing.name, "LoRA")
    lora, _, part = thing.name.partition("/")
    if part and not (folders.loras / lora).is_dir():
        raise SavingError(f"{thing.name!r} belongs to {lora!r}, which is gone. Restore that first.")
    if target.exists():
        target = target.with_name(free_name(target.parent, target.name))
    back = _moved(thing.folder, target, folders)
    _tidy(thing.folder.parent, folders)
    return back


def empty(folders: Folders, name: str = "") -> int:
    """Remove for good what is in the trash, or what is there of this name; says how many bytes that freed."""
    freed = 0
    for thing in [thing for thing in thrown(folders) if name in ("", thing.name)]:
        freed += thing.size
        _removed(thing.folder)
        _tidy(thing.folder.parent, folders)
    return freed


def _moment(thing: Path, trash: Path) -> str:
    return thing.relative_to(trash).parts[0]


def _free_moment(trash: Path) -> Path:
    now = datetime.datetime.now().strftime("%Y-%m-%d %H.%M.%S")
    return trash / (free_name(trash, now) if (trash / now).exists() else now)


def _moved(folder: Path, target: Path, folders: Folders) -> Path:
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        return moved(folder, target)
    except OSError as error:
        _tidy(target.parent, folders)
        raise _in_the_way(folder, error) from error


def _removed(folder: Path) -> None:
    try:
        folder.unlink() if folder.is_symlink() else cleared_away(folder)
    except OSError as error:
        raise _in_the_way(folder, error) from error


def _in_the_way(folder: Path, error: OSError) -> SavingError:
    return SavingError(
        f"{folder} cannot be moved or removed: {error.strerror or error}. If a program has a file of it open "
        "(a chat with this LoRA, a file manager), close that and try again."
    )


def _tidy(folder: Path, folders: Folders) -> None:
    """Empty folders of the trash go, from this one upwards."""
    while folder != folders.loras and folder.is_dir() and not any(folder.iterdir()):
        folder.rmdir()
        folder = folder.parent
