"""Which LoRA is in training now, here or in another process: a lock that the system drops when its owner dies."""

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
    """Inside, nobody else trains this LoRA or throws it away."""
    if not dist_env.is_first():
        yield
        return
    path = _place(name, folders)
    with lock(path) as ours:
        if not ours:
            raise _busy(name)
        try:
            yield
        finally:
            removed(path)


def refuse_in_progress(name: str, folders: Folders) -> None:
    """BusyError where somebody trains it now: before anything is read for a run that could not begin."""
    if dist_env.is_first() and is_in_progress(name, folders):
        raise _busy(name)


def is_in_progress(name: str, folders: Folders) -> bool:
    """Whether somebody trains it now; nobody does under a name that no LoRA can have."""
    return not safe_paths.name_fault(f"{name}{LOCK}") and is_locked(_place(name, folders))


def _busy(name: str) -> BusyError:
    return BusyError(f"{name!r} is being trained just now, by another page or command. Wait for its end.")


def _place(name: str, folders: Folders) -> Path:
    return safe_paths.child(folders.training, f"{name}{LOCK}", "Name")
