"""Locks between programs on the same folders, which the system drops when their owner dies."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from ..errors import SavingError
from .atomic_files import write_error_reason

if TYPE_CHECKING:
    from filelock import BaseFileLock

PATIENCE_SECONDS = 0.2
"""Long enough for another program that only looks: it holds the lock for that moment."""
LOOK_SECONDS = 0.02


@contextmanager
def lock(path: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[bool]:
    """Try to hold a lock for the block, waiting `patience` seconds; yield whether it is held."""
    _refuse_unwritable(path)
    held = _acquire(path, patience)
    try:
        yield held is not None
    finally:
        if held is not None:
            held.release()


def is_locked(path: Path) -> bool:
    """Whether another program holds the lock now; a file that a crash left behind does not count."""
    if not path.is_file():
        return False
    held = _acquire(path, LOOK_SECONDS)
    if held is not None:
        held.release()
    return held is None


def remove_lock_file(path: Path) -> None:
    """Remove the file of a lock that nobody waits for; Windows keeps one that is open, which does no harm."""
    with suppress(OSError):
        path.unlink()


def _acquire(path: Path, seconds: float) -> BaseFileLock | None:
    from filelock import FileLock, Timeout

    lock = FileLock(path, timeout=seconds, poll_interval=LOOK_SECONDS, thread_local=False)
    try:
        lock.acquire()
    except Timeout:
        return None
    except OSError:  # a disk that knows no locks refuses nobody
        return lock
    return lock


def _refuse_unwritable(path: Path) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        why = write_error_reason(error, path.parent)
        raise SavingError(
            f"Can't write to {path.parent}: {why}. Fix the problem, or choose another folder."
        ) from error
