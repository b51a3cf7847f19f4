"""Files that survive a crash and other programs: atomic writes, retries, JSON, a full disk, and locks.

A file is written under a temporary name and then renamed, so a kill leaves the old or the new file.
"""

from __future__ import annotations

import errno
import json
import math
import os
import re
import shutil
import stat
import sys
import tempfile
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar

from ...train_utils import size
from ..errors import SavingError, first_line

if TYPE_CHECKING:
    from filelock import BaseFileLock

# Suffix, or whole name, of a file or folder that is being written or removed.
PART_SUFFIX = ".part"
# Pauses between tries: enough for a page to read a file and, mostly, for a virus scanner to check it.
RETRY_PAUSES_SECONDS = (0.02, 0.05, 0.1, 0.2, 0.4, 0.8)
# Further pauses for a folder of new files: some scanners hold it for a minute, and other programs (npm, VS Code)
# wait as long on Windows.
NEW_FOLDER_PAUSES_SECONDS = (1.6, 3.2, *[5.0] * 9)
# The parsed values of a JSON file may take 20 times its size.
MAX_SMALL_FILE_BYTES = 4_000_000
# A disk with fewer free bytes counts as full. One with so many free bytes is full only because of a quota.
MIN_FREE_BYTES, MANY_FREE_BYTES = 100_000, 10**10
# Phrases by which libraries report a full disk. Windows translates its messages, so here are error numbers. The
# second row is of torch.save, where a write fails, and of limits on files and on their owner.
DISK_FULL_PHRASES = (
    *("space left", "(os error 112)", "(os error 39)"),
    *("iostream error", "file write failed", "unexpected pos", "os error 27", "os error 122"),
)
SURROGATE_ESCAPE = re.compile(r"\\u[dD][89a-fA-F]")
LONE_SURROGATE = re.compile(r"[\ud800-\udfff]")
# Long enough for another program that only looks: it holds the lock for that moment.
PATIENCE_SECONDS, LOOK_SECONDS = 0.2, 0.02

Result = TypeVar("Result")


@contextmanager
def atomic_write(path: Path, name: str = "") -> Iterator[Path]:
    """Yield a temporary path next to `path`; it is renamed to `path` on success and removed on an error."""
    temporary = path.with_name(name or path.name + PART_SUFFIX)
    path.parent.mkdir(parents=True, exist_ok=True)
    if temporary.is_dir():  # left by a killed process
        remove_folder(temporary)
    try:
        yield temporary
        move_new_folder(temporary, path) if temporary.is_dir() else move_atomically(temporary, path)
    except BaseException:
        with suppress(OSError):
            remove_folder(temporary) if temporary.is_dir() else temporary.unlink(missing_ok=True)
        raise


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, so that no listing shows an unfinished folder.

    At the end, the finished folder has been moved out. What is left is removed, unless a virus scanner holds it.
    """
    folder.parent.mkdir(parents=True, exist_ok=True)
    temporary = Path(tempfile.mkdtemp(prefix=".making-", dir=folder.parent))
    try:
        yield temporary
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


def move_atomically(path: Path, target: Path) -> Path:
    """Rename atomically, so that a kill leaves it at the old or the new place; retries while it is in use."""
    return with_retries(lambda: path.replace(target))


def move_new_folder(folder: Path, target: Path) -> Path:
    """Like `moved`, with more retries: a virus scanner may hold a folder of new files for longer."""
    return with_retries(lambda: folder.replace(target), NEW_FOLDER_PAUSES_SECONDS)


def with_retries(act: Callable[[], Result], more_pauses: Sequence[float] = ()) -> Result:
    """Call `act`, with retries: Windows can neither move nor open a file that another program has open."""
    for pause in (*RETRY_PAUSES_SECONDS, *more_pauses):
        try:
            return act()
        except PermissionError:
            time.sleep(pause)
    return act()


def remove_folder(folder: Path) -> None:
    """Remove a folder with its content, also read-only files, which .git has in a clone on Windows."""

    def make_writable_and_retry(remove: Callable[[str], object], path: str, error: object) -> None:
        if remove not in (os.unlink, os.rmdir):
            raise
        Path(path).chmod(stat.S_IRWXU)
        with_retries(lambda: remove(path))

    if sys.version_info >= (3, 12):
        shutil.rmtree(folder, onexc=make_writable_and_retry)
    else:
        shutil.rmtree(folder, onerror=make_writable_and_retry)


def write_text(path: Path, text: str) -> None:
    """Write text atomically, with the same bytes on every system: translated line ends would grow."""
    with atomic_write(path) as temporary:
        temporary.write_text(LONE_SURROGATE.sub("\ufffd", text), encoding="utf-8", newline="\n")


def read_json(path: Path, otherwise: Any) -> Any:
    """Read a JSON file; return `otherwise` if it cannot be read or holds a value of another type."""
    try:
        value = parse_json(path)
    except (OSError, ValueError):
        return otherwise
    return value if isinstance(value, type(otherwise)) else otherwise


def parse_json(path: Path) -> Any:
    """Parse a JSON file; a ValueError says why it is none. Lone surrogates are replaced."""
    text = with_retries(lambda: path.read_text(encoding="utf-8-sig"))
    try:
        value = json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None
    return _with_whole_characters(value) if SURROGATE_ESCAPE.search(text) else value


def _with_whole_characters(value: Any) -> Any:
    if isinstance(value, str):
        return LONE_SURROGATE.sub("\ufffd", value)
    if isinstance(value, dict):
        return {_with_whole_characters(key): _with_whole_characters(item) for key, item in value.items()}
    return [_with_whole_characters(item) for item in value] if isinstance(value, list) else value


def read_small_file(path: Path) -> bytes:
    """Read a file of settings or templates that may come from anywhere; a ValueError refuses a far larger one."""
    with path.open("rb") as stream:
        data = stream.read(MAX_SMALL_FILE_BYTES + 1)
    if len(data) > MAX_SMALL_FILE_BYTES:
        raise ValueError(f"it is larger than {size(MAX_SMALL_FILE_BYTES)}")
    return data


def write_json(path: Path, value: Any) -> None:
    write_text(path, dump_json(value, indent=2) + "\n")


def dump_json(value: Any, *, indent: int | None = None) -> str:
    """Dump valid JSON: NaN and infinity become null."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=str, allow_nan=False)


def dump_with_list(values: Mapping[str, Any], key: str, items: Iterable[Any]) -> Iterator[str]:
    """Dump a JSON object with a long list as its last value, piece by piece, so that no copy takes memory."""
    yield f"{dump_json(values)[:-1]}, {json.dumps(key)}: ["
    for number, item in enumerate(items):
        yield f"{', ' if number else ''}{dump_json(item)}"
    yield "]}"


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def flush_to_disk(folder: Path) -> None:
    """Flush the files of a folder to the disk, so that they survive a power cut."""
    for file in folder.iterdir():
        if file.is_file():
            with with_retries(partial(file.open, "rb+")) as stream:
                os.fsync(stream.fileno())


def is_disk_full(error: Exception, folder: Path) -> bool:
    """Whether the disk or the user's quota is full; some libraries say so only in their message, or not at all."""
    number = getattr(error, "errno", None)
    return (
        says_disk_full(error)
        or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        or free_bytes(folder) < MIN_FREE_BYTES
    )


def says_disk_full(error: Exception) -> bool:
    """Whether an error says in its message that the disk is full, as libraries do that have no type for it."""
    return any(words in str(error) for words in DISK_FULL_PHRASES)


def write_error_reason(error: Exception, folder: Path) -> str:
    """Reason why a folder cannot be written, in words."""
    if is_disk_full(error, folder):
        free = free_bytes(folder)
        is_limit = free >= MANY_FREE_BYTES and getattr(error, "errno", None) != errno.ENOSPC
        what = "the disk is full" + " or a quota is used up" * is_limit
        return f"{what} ({size(free)} free)"
    if isinstance(error, PermissionError):
        return f"{Path(error.filename or folder).name} is read-only, or another program has it open"
    if getattr(error, "errno", None) == errno.EROFS:
        return "the folder is read-only"
    if isinstance(error, NotADirectoryError):
        return "there is a file where the folder should be"
    return str(getattr(error, "strerror", None) or first_line(error))


def free_bytes(folder: Path) -> int:
    """Free bytes on the disk of a folder, which need not exist yet."""
    return shutil.disk_usage(nearest_existing(folder)).free


def nearest_existing(folder: Path) -> Path:
    """The folder itself, or its nearest existing parent."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path())


@contextmanager
def lock(path: Path, *, patience: float = PATIENCE_SECONDS) -> Iterator[bool]:
    """Try to hold a lock for the block, waiting `patience` seconds; yield whether it is held.

    The operating system drops the lock when its owner dies. Process ids would not do: they are reused.
    """
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        path.open("ab").close()
    except OSError as error:
        why = write_error_reason(error, path.parent)
        raise SavingError(
            f"Can't write to {path.parent}: {why}. Fix the problem, or choose another folder."
        ) from error
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

    held = FileLock(path, timeout=seconds, poll_interval=LOOK_SECONDS, thread_local=False)
    try:
        held.acquire()
    except Timeout:
        return None
    except OSError:  # a disk that knows no locks refuses nobody
        return held
    return held
