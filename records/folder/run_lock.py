"""Lock of a LoRA in training, across processes. The operating system releases it when its owner dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from ...core import dist_env
from ...core.errors import BusyError
from ...core.files import is_locked, lock, removed, safe_paths
from ...core.host import Folders

LOCK = ".lock"


@contextmanager
def in_progress(name: str, folders: Folders) -> Iterator[None]:
    """Hold the lock of a LoRA, so that no other process trains or deletes it."""
    if not dist_env.is_first():
        yield
        return
    path = _lock_path(name, folders)
    with lock(path) as acquired:
        if not acquired:
            raise _busy_error(name)
        try:
            yield
        finally:
            removed(path)


def refuse_in_progress(name: str, folders: Folders) -> None:
    """Raise BusyError if a LoRA is being trained, before data is read for a run that could not start."""
    if dist_env.is_first() and is_in_progress(name, folders):
        raise _busy_error(name)


def is_in_progress(name: str, folders: Folders) -> bool:
    """Return whether a LoRA is being trained; False for a name that no LoRA can have."""
    return not safe_paths.name_fault(f"{name}{LOCK}") and is_locked(_lock_path(name, folders))


def _busy_error(name: str) -> BusyError:
    return BusyError(f"{name!r} is being trained just now, by another page or command. Wait for its end.")


def _lock_path(name: str, folders: Folders) -> Path:
    return safe_paths.child(folders.training, f"{name}{LOCK}", "Name")
