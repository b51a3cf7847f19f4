"""Data sets made ready, kept on disk in Arrow: what was read, rendered and tokenized once is not done again.

A file holds the arrays of one data set, and beside them what there was to say of it. Its name is a key of all
that they follow from: the content, the settings that matter, the tokenizer, and this program's own code. Files
are written aside and renamed, so a whole one is a whole one; one that is broken or not ours is made anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

from ..core.files import PART, written_whole
from ..core.host import Folders
from ..core.version import VERSION
from .readers import text_files

ENDING = ".arrow"
LARGEST = 4 * 10**9  # bytes, of all files together
OLD_PART_SECONDS = 86_400
OURS = b"training_pro"
ROOT = Path(__file__).resolve().parent.parent
CODE = ("data/**/*.py", "data/**/*.json", "settings/columns.py", "chunking.py", "dementor.py")
"""A tokenizer's code is part of its fingerprint; phrases that Check looks for are in the keys themselves."""
HASHED_AT_ONCE = 1 << 22
SUM_BYTES = 4


@dataclass(frozen=True)
class Entry:
    """What is kept of one data set."""

    arrays: Mapping[str, Any]
    said: Any  # as JSON takes it


@dataclass(frozen=True)
class Store:
    """Where prepared data are kept; without a folder nothing is kept and nothing found."""

    folder: Path | None = None
    largest: int = LARGEST

    def found(self, key: str) -> Entry | None:
        """What is kept under a key; nothing where there is none, or none that is whole."""
        arrow = _arrow()
        if self.folder is None or not key or arrow is None:
            return None
        path = self.folder / (key + ENDING)
        try:
            entry = _read(arrow, path, key)
        except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException):
            return None
        with suppress(OSError):
            os.utime(path)  # used just now: others are older
        return entry

    def keep(self, key: str, entry: Entry) -> None:
        """Keep it, and let the oldest go where that is too much; a disk that is full or locked keeps nothing."""
        arrow = _arrow()
        if self.folder is None or not key or arrow is None:
            return
        if sum(array.nbytes for array in entry.arrays.values()) > self.largest:
            return
        path, alone = self.folder / (key + ENDING), f".{key}-{os.getpid()}{PART}"
        with suppress(OSError, arrow.ArrowException), written_whole(path, alone) as aside:
            _write(arrow, aside, key, entry)
        _let_go(self.folder, self.largest)


def store(folders: Folders) -> Store:
    return Store(folders.prepared)


def size(folders: Folders) -> int:
    """The bytes that prepared data take on disk."""
    return sum(_size(path) for path in _files(folders.prepared))


def clear(folders: Folders) -> int:
    """Take all prepared data away; the bytes that are free then."""
    freed = 0
    for path in _files(folders.prepared):
        taken = _size(path)
        with suppress(OSError):
            path.unlink()
            freed += taken
    return freed


def key(*parts: object) -> str:
    """A name for what follows from all of these; each is taken as it prints."""
    found = hashlib.blake2b(digest_size=20)
    for part in (VERSION, _code(), *parts):
        data = part if isinstance(part, bytes) else repr(part).encode("utf-8", "surrogatepass")
        found.update(len(data).to_bytes(8, "little") + data)
    return found.hexdigest()


def content(path: Path, name: str) -> str:
    """A fingerprint of a file's bytes."""
    found = hashlib.blake2b(digest_size=20)
    with text_files.opened(path, name) as stream:
        while data := stream.read(HASHED_AT_ONCE):
            found.update(data)
    return found.hexdigest()


def of_text(text: str) -> str:
    """A fingerprint of a text."""
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def of_files(paths: Iterable[Path]) -> str:
    """A fingerprint of small files' bytes, in the order of their names."""
    found = hashlib.blake2b(digest_size=20)
    for path in sorted(paths):
        found.update(path.read_bytes())
    return found.hexdigest()


def code_files() -> list[Path]:
    """What decides on what is prepared, tables included."""
    return [path for pattern in CODE for path in ROOT.glob(pattern)]


@cache
def _code() -> str:
    """What an older program made is not taken for its own."""
    return of_files(code_files())


def _arrow() -> Any:
    """pyarrow, which comes with datasets; without it nothing is kept, and all else is as it is."""
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow


def _read(arrow: Any, path: Path, key: str) -> Entry:
    """A file's arrays, each writable and in memory; a ValueError where it is not what was written.

    Arrow trusts what it reads: a file with a wrong number in it would end the whole program.
    """
    import numpy as np

    data = memoryview(path.read_bytes())
    whole, check = data[:-SUM_BYTES], data[-SUM_BYTES:]
    if zlib.crc32(whole) != int.from_bytes(check, "little"):
        raise ValueError("not what was written: the sum of its bytes is another")
    with arrow.ipc.open_file(arrow.py_buffer(whole)) as reader:
        noted = json.loads((reader.schema.metadata or {})[OURS])
        table = reader.read_all()
    arrays = {}
    for name, kind in noted["arrays"].items():
        arrays[name] = np.array(table.column(name).chunk(0).values.to_numpy().view(kind))
    if noted["key"] != key:
        raise ValueError("not what was written under this key")
    return Entry(arrays, noted["said"])


def _write(arrow: Any, path: Path, key: str, entry: Entry) -> None:
    """One row, each array a list in it: arrays of all lengths fit."""
    import numpy as np

    arrays = {name: np.ascontiguousarray(array) for name, array in entry.arrays.items()}
    plain = {name: array.view("uint8") if array.dtype == bool else array for name, array in arrays.items()}
    noted = {
        "key": key,
        "arrays": {name: str(array.dtype) for name, array in arrays.items()},
        "said": entry.said,
    }
    lists = [
        arrow.LargeListArray.from_arrays(arrow.array([0, len(a)], arrow.int64()), arrow.array(a))
        for a in plain.values()
    ]
    table = arrow.Table.from_arrays(lists, names=list(plain)).replace_schema_metadata(
        {OURS: json.dumps(noted).encode()}
    )
    with path.open("wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
        writer.write_table(table)
    _sum_up(path)


def _sum_up(path: Path) -> None:
    """Put the sum of a file's bytes behind them."""
    check = 0
    with path.open("r+b") as file:
        while data := file.read(HASHED_AT_ONCE):
            check = zlib.crc32(data, check)
        file.write(check.to_bytes(SUM_BYTES, "little"))


def _let_go(folder: Path, largest: int) -> None:
    """The files that were used longest ago, until the others are small enough; and what a crash left behind."""
    now, left = time.time(), largest
    for path in sorted(_files(folder), key=_used, reverse=True):
        left -= _size(path)
        if left < 0 or (path.suffix == PART and now - _used(path) > OLD_PART_SECONDS):
            with suppress(OSError):
                path.unlink()


def _files(folder: Path) -> Iterable[Path]:
    """Ours: nothing else in the folder is counted or touched."""
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if path.suffix in (ENDING, PART) and path.is_file()]


def _used(path: Path) -> float:
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def _size(path: Path) -> int:
    try:
        return path.stat().st_size
    except OSError:
        return 0
