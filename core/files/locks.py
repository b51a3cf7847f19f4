"""Locks between programs on the same folders, which the system drops when their owner dies."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import IO

from ..errors import SavingError
from .atomic_files import why_not_written

LOOK_AGAIN_SECONDS = 0.02
LOOKS_SECONDS = 0.2
"""Whoever looks has the lock for that moment; this is long enough for many looks."""


@contextmanager
def lock(path: Path, *, patience: float = LOOKS_SECONDS) -> Iterator[bool]:
    """Inside, whether it is ours; for so many seconds it is waited for."""
    with _opened(path) as file:
        yield _locked_in(patience, file)


def is_locked(path: Path) -> bool:
    """Whether somebody has it now; what a crash left behind does not count."""
    try:
        with path.open("r+b") as file:
            return not _locked_in(LOOK_AGAIN_SECONDS, file)  # not for a look of another's
    except OSError:
        return False


def removed(path: Path) -> None:
    """The file of a lock that nobody waits for; Windows removes none that is open, which does no harm."""
    with suppress(OSError):
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


def _locked_in(seconds: float, file: IO[bytes]) -> bool:
    until = time.monotonic() + seconds
    while not (ours := _locked(file)) and time.monotonic() < until:
        time.sleep(LOOK_AGAIN_SECONDS)
    return ours


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
