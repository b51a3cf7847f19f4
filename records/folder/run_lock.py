"""Lock of a LoRA in training, across processes. The operating system releases it when its owner dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core import dist_env
from ...core.errors import BusyError
from ...core.files import is_locked, lock, remove_lock_file, safe_paths, usable_entries
from ...core.host import Folders

LOCK_SUFFIX = ".lock"


@contextmanager
def hold_run_lock(name: str, folders: Folders) -> Iterator[None]:
    """Hold the lock of a LoRA, so that no other process trains or deletes it."""
    if not dist_env.is_main_process():
        yield
        return
    path = _lock_path(name, folders)
    with lock(path) as acquired:
        if not acquired:
            raise _busy_error(name)
        try:
            yield
        finally:
            remove_lock_file(path)


def refuse_in_progress(name: str, folders: Folders) -> None:
    """Raise BusyError if a LoRA is being trained, before data is read for a run that could not start."""
    if dist_env.is_main_process() and is_in_progress(name, folders):
        raise _busy_error(name)


def is_in_progress(name: str, folders: Folders) -> bool:
    """Return whether a LoRA is being trained; False for a name that no LoRA can have."""
    return not safe_paths.name_fault(f"{name}{LOCK_SUFFIX}") and is_locked(_lock_path(name, folders))


def runs_in_progress(folders: Folders) -> list[str]:
    """Names of the LoRAs that are being trained now, by any process."""
    files = (path for path in usable_entries(folders.training) if path.suffix == LOCK_SUFFIX)
    return sorted(path.stem for path in files if "." not in path.stem and is_locked(path))


def _busy_error(name: str) -> BusyError:
    return BusyError(f"{name!r} is being trained. Stop the run first, or wait until it ends.")


def _lock_path(name: str, folders: Folders) -> Path:
    link = folders.loras / name
    if not safe_paths.name_fault(name) and link.is_symlink():  # both names of a folder have one lock
        name = link.resolve().name
    return safe_paths.child(folders.training, f"{name}{LOCK_SUFFIX}", "Name")
