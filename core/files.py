"""Files that survive a crash and other programs: atomic writes, retries, JSON, a full disk, locks, and records.

A file is written under a temporary name and then renamed, so a kill leaves the old or the new file. Records are
read back by the types that their classes declare; a damaged value is told and left out.
"""

from __future__ import annotations

import dataclasses
import errno
import json
import os
import re
import shutil
import stat
import sys
import time
import types
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from enum import Enum
from functools import lru_cache, partial
from pathlib import Path
from secrets import token_hex
from tempfile import TemporaryDirectory
from typing import Annotated, Any, Literal, TypeVar, Union, get_args, get_origin, get_type_hints, is_typeddict

from ..train_utils import size
from . import safe_paths as safe_paths
from .errors import SavingError, first_line
from .readable import quote
from .safe_paths import descendant as descendant
from .safe_paths import has_impossible_character
from .safe_paths import name_fault as name_fault

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
# A float holds whole numbers up to this one exactly; our counts and times are far smaller.
MAX_NUMBER = 2**53
MAX_FLOAT = 1e300
# Every declared range contains the numbers from 0 to this one.
PLAIN_NUMBER = 10**9
# A time in 2106, which every system can write as a date.
LAST_SECOND = 2**32 - 1
UNIONS = (Union, types.UnionType)
NAMES = {int: "a whole number", float: "a number", str: "text", bool: "true or false", type(None): "null"}

Result = TypeVar("Result")
Record = TypeVar("Record")


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
def new_files(*paths: Path) -> Iterator[list[Path]]:
    """Temporary paths that get these names at the end; a file that exists is never overwritten."""

    def refuse_existing() -> None:
        for path in paths:
            if path.exists() or path.is_symlink():
                raise SavingError(f"{path} exists already. Choose another name, or remove it.")

    refuse_existing()
    with ExitStack() as stack:
        names = (f".making-{token_hex(4)}-{path.name}" for path in paths)
        yield [stack.enter_context(atomic_write(*each)) for each in zip(paths, names, strict=True)]
        refuse_existing()  # another program may have made one in the meantime


@contextmanager
def staging_folder(folder: Path) -> Iterator[Path]:
    """Yield a temporary folder next to `folder`, so that no listing shows an unfinished folder."""
    # At the end, the finished folder has been moved out. What is left is removed, unless a virus scanner holds it.
    folder.parent.mkdir(parents=True, exist_ok=True)
    with TemporaryDirectory(prefix=".making-", dir=folder.parent, ignore_cleanup_errors=True) as temporary:
        yield Path(temporary)


def move_atomically(path: Path, target: Path) -> Path:
    """Rename atomically, so that a kill leaves it at the old or the new place; retries while it is in use."""
    return with_retries(lambda: path.replace(target))


def move_new_folder(folder: Path, target: Path) -> Path:
    """Like `move_atomically`, with more retries: a virus scanner may hold a folder of new files for longer."""
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
    # Half of a character, as a name from the disk may hold, has no bytes in UTF-8.
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
    # utf-8-sig: editors on Windows may begin a file with a byte order mark.
    text = with_retries(lambda: path.read_text(encoding="utf-8-sig"))
    try:
        if SURROGATE_ESCAPE.search(text):  # perhaps half of a character: written out, it can be seen and replaced
            text = LONE_SURROGATE.sub("\ufffd", json.dumps(json.loads(text), ensure_ascii=False))
        return json.loads(text)
    except RecursionError:
        raise ValueError("it is nested too deeply") from None


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
    """Dump valid JSON: NaN and infinity, which JSON does not know, become null."""
    text = json.dumps(value, default=lambda other: dict(other) if isinstance(other, Mapping) else str(other))
    finite = json.loads(text, parse_constant=lambda name: None)
    return json.dumps(finite, indent=indent, ensure_ascii=False)


def flush_to_disk(folder: Path) -> None:
    """Flush the files of a folder to the disk, so that they survive a power cut."""
    for file in folder.iterdir():
        if file.is_file():
            with with_retries(partial(file.open, "rb+")) as stream:
                os.fsync(stream.fileno())


def is_disk_full(error: Exception, folder: Path) -> bool:
    """Whether the disk or the user's quota is full; some libraries say so only in their message, or not at all."""
    # EDQUOT: the quota of the user is used up. EFBIG: the file is larger than the file system or a limit allows.
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
    """Try to hold a lock for the block, waiting `patience` seconds; yield whether it is held."""
    # The operating system drops the lock when its owner dies. Process ids would not do: they are reused.
    deadline = time.monotonic() + patience
    while True:
        # Opened anew for each try: its owner may have removed the file, and a lock on that one refuses nobody.
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            stream = path.open("ab")
        except OSError as error:
            why = write_error_reason(error, path.parent)
            raise SavingError(
                f"Can't write to {path.parent}: {why}. Fix the problem, or choose another folder."
            ) from error
        with stream:  # closing the file releases the lock
            held = _lock_now(stream.fileno())
            if held or time.monotonic() >= deadline:
                yield held
                return
        time.sleep(LOOK_SECONDS)


def _lock_now(descriptor: int) -> bool:
    """Lock an open file with the standard library, which a bare Python has; False if it is locked already."""
    try:
        if sys.platform == "win32":
            import msvcrt

            msvcrt.locking(descriptor, msvcrt.LK_NBLCK, 1)
        else:
            import fcntl

            fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except (BlockingIOError, PermissionError):
        return False
    except OSError:
        pass  # a disk that knows no locks refuses nobody
    return True


def is_locked(path: Path) -> bool:
    """Whether another program holds the lock now; a file that a crash left behind does not count."""
    for pause in (LOOK_SECONDS, 0.0):  # twice: another program that only looks holds it for a moment
        held = True
        if path.is_file():  # a look makes none
            with suppress(SavingError), lock(path, patience=0.0) as held:
                pass
        if held:
            return False
        time.sleep(pause)
    return True


def remove_lock_file(path: Path) -> None:
    """Remove the file of a lock that nobody waits for; Windows keeps one that is open, which does no harm."""
    with suppress(OSError):
        path.unlink()


def usable_entries(folder: Path) -> list[Path]:
    """The entries of a folder whose names are text; none if there is no such folder."""
    # A name of other bytes, from another system or an old archive, can be shown on no page and written into no
    # file.
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not has_impossible_character(path.name)]


def modified_at(path: Path) -> float:
    """Return when a file was last written; 0 for one that has gone, or for a link that leads nowhere."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def folder_size(folder: Path) -> int:
    """Bytes of all files in a folder; 0 if there is none."""
    total = 0
    for root, _, names in os.walk(folder):
        for name in names:
            with suppress(OSError):
                total += os.lstat(os.path.join(root, name)).st_size  # noqa: PTH118 - 30,000 files
    return total


# Numbers with their bounds.
Timestamp = Annotated[float, 0, LAST_SECOND]
Count = Annotated[int, 0, MAX_NUMBER]


def read_record(path: Path, declared: type[Record], otherwise: Record, damage: list[str] | None = None) -> Record:
    """Read a record by its class, a dataclass or a TypedDict, or a list of them; `otherwise` if there is none.

    Values of another type than declared are left out. `damage` gets a sentence about each.
    """
    damage = [] if damage is None else damage
    try:
        record: Record = check_record(parse_json(path), declared, path.name, damage)
    except FileNotFoundError:
        return otherwise
    except (OSError, ValueError) as error:
        damage.append(f"{path.name} can't be read: {error}")
        return otherwise
    return record


def check_record(value: Any, declared: Any, place: str, damage: list[str]) -> Any:
    """Return a value as its type declares it, without damaged parts; a ValueError says if all of it is."""
    origin, arguments = get_origin(declared), get_args(declared)
    is_right = False
    if declared is Any or declared is object:
        is_right = True
    elif is_typeddict(declared) or dataclasses.is_dataclass(declared):
        if isinstance(value, Mapping):
            return _check_fields(value, declared, place, damage)
    elif origin is Annotated:
        number_type, lowest, highest = arguments
        value = check_record(value, number_type, place, damage)
        is_right = lowest <= value <= highest
    elif origin in UNIONS:
        errors = []
        for option in arguments:
            try:
                return check_record(value, option, place, damage)
            except ValueError as error:
                errors.append(error)
        if isinstance(value, (Mapping, list)):  # what is wrong inside it
            raise errors[0]
    elif origin is Literal:
        is_right = value in arguments and type(value) in map(type, arguments)
    elif origin in (list, tuple, Sequence):
        if isinstance(value, (list, tuple)):
            entries = ((n, f"{place}, entry {n}", item) for n, item in enumerate(value, 1))
            items = _without_damage(entries, arguments[0], damage).values()
            return tuple(items) if origin is tuple else list(items)
    elif origin in (dict, Mapping):
        if isinstance(value, Mapping):
            entries = ((key, f"{place}: {key}", item) for key, item in value.items())
            return _without_damage(entries, arguments[1], damage)
    elif declared is float:
        # In Python, True is an int. JSON has no NaN, but a number such as 1e999 is read as infinity.
        is_right = isinstance(value, (int, float)) and type(value) is not bool and abs(value) <= MAX_FLOAT
    elif declared is int:
        is_right = type(value) is int and abs(value) <= MAX_NUMBER
    elif declared is Path or (isinstance(declared, type) and issubclass(declared, Enum)):
        if isinstance(value, str):
            return declared(value)  # a ValueError for a name that the enum does not have
    else:
        is_right = type(value) is declared
    if is_right:
        return value
    raise ValueError(f"{place} is {quote(value)}, which is not {_describe(declared)}.")


def _describe(declared: Any) -> str:
    """Describe the values of a type, in the words of JSON."""
    origin, arguments = get_origin(declared), get_args(declared)
    if origin is Literal:
        return f"one of {', '.join(map(str, arguments))}"
    if origin is Annotated:
        return _describe(arguments[0])
    if origin in UNIONS:
        return " or ".join(map(_describe, arguments))
    return "a list" if origin in (list, tuple, Sequence) else NAMES.get(declared, "a JSON object")


def _without_damage(entries: Iterable[tuple[Any, str, Any]], declared: Any, damage: list[str]) -> dict[Any, Any]:
    """Check entries, each with its key, its place in words and its value, and leave out the damaged ones."""
    checked = {}
    for key, place, value in entries:
        try:
            checked[key] = check_record(value, declared, place, damage)
        except ValueError as error:
            damage.append(str(error))
    return checked


def _check_fields(value: Mapping[str, Any], declared: Any, place: str, damage: list[str]) -> Any:
    """Check the declared values of a record; a TypedDict keeps others as they are, a dataclass leaves them out."""
    hints, required = _fields(declared)
    found: list[str] = []
    values: dict[str, Any] = {}
    for key, item in value.items():
        hint, kind = hints.get(key, Any), type(item)
        # A curve has thousands of values, so most of them are let through without a closer look.
        if kind in _plain_types(hint) and (kind not in (int, float) or 0 <= item <= PLAIN_NUMBER):
            values[key] = item
        else:
            values |= _without_damage([(key, f"{place}: {key}", item)], hint, found)
    if missing := required - values.keys():
        raise ValueError(found[0] if found else f"{place} has no {min(missing)}.")
    damage += found
    if is_typeddict(declared):
        return values
    damage += [f"{place} has an unknown key {quote(key)}." for key in values.keys() - hints.keys()]
    make: Callable[..., Any] = declared
    return make(**{key: item for key, item in values.items() if key in hints})


@lru_cache(maxsize=256)
def _plain_types(declared: Any) -> frozenset[type]:
    """The types whose values need no further look; none for a declaration that has parts."""
    if get_origin(declared) is Annotated:
        return _plain_types(get_args(declared)[0])
    if get_origin(declared) in UNIONS:
        return frozenset().union(*map(_plain_types, get_args(declared)))
    return frozenset({int, float} if declared is float else {declared} if declared in NAMES else ())


@lru_cache(maxsize=64)
def _fields(declared: Any) -> tuple[Mapping[str, Any], frozenset[str]]:
    """The types of the fields of a record, and the keys that it needs."""
    hints = get_type_hints(declared, include_extras=True)
    if is_typeddict(declared):
        return hints, frozenset(declared.__required_keys__)
    absent = dataclasses.MISSING
    fields = [f for f in dataclasses.fields(declared) if f.init]
    needed = (f.name for f in fields if f.default is absent and f.default_factory is absent)
    return hints, frozenset(needed)
