"""Which LoRA is in training now, here or in another process: a lock that the system drops when its owner dies."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..core import processes
from ..core.errors import BusyError, SavingError
from ..core.host import Folders
from ..core.writing import why_not_written


@contextmanager
def in_progress(name: str, folders: Folders) -> Iterator[None]:
    """Inside, nobody else trains this LoRA or throws it away."""
    if not processes.is_first():
        yield
        return
    path = _place(name, folders)
    with _opened(path) as file:
        if not _locked(file):
            raise _busy(name)
        try:
            yield
        finally:
            with suppress(OSError):  # Windows removes no open file; what lies there unlocked means nothing
                path.unlink()


def _opened(path: Path) -> IO[bytes]:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        return path.open("ab")
    except OSError as error:
        why = why_not_written(error, path.parent)
        raise SavingError(
            f"{path.parent} cannot be written: {why}. Mend that, or choose another folder."
        ) from error


def refuse_in_progress(name: str, folders: Folders) -> None:
    """BusyError where somebody trains it now: before anything is read for a run that could not begin."""
    if processes.is_first() and is_in_progress(name, folders):
        raise _busy(name)


def is_in_progress(name: str, folders: Folders) -> bool:
    """Whether somebody trains it now; what a crash left behind does not count."""
    try:
        with _place(name, folders).open("r+b") as file:
            return not _locked(file)
    except OSError:
        return False


def _busy(name: str) -> BusyError:
    return BusyError(f"{name!r} is being trained just now, by another page or command. Wait for its end.")


def _place(name: str, folders: Folders) -> Path:
    return folders.training / f"{name}.lock"


def _locked(file: IO[bytes]) -> bool:
    """Whether the lock is ours now, until the file is closed; also where the disk knows no locks."""
    try:
        _lock(file)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        return True
    return True


if sys.platform == "win32":

    def _lock(file: IO[bytes]) -> None:
        import msvcrt

        file.seek(0)
        msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)

else:

    def _lock(file: IO[bytes]) -> None:
        import fcntl

        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
