"""Prepared data on disk, in Arrow files: what was read, rendered and tokenized once is loaded the next time.

A file holds the arrays of one dataset and its metadata. Its name is a hash of everything that determines the
arrays: the content, the settings that matter, the tokenizer, and this program's own code. Files are written under
a temporary name and then renamed, so a partial file is never read; a broken or foreign file is built again.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
import tempfile
import time
import weakref
import zlib
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass
from functools import cache
from itertools import accumulate, pairwise
from pathlib import Path
from typing import Any

from ..core.errors import DataError
from ..core.files import PART_SUFFIX, atomic_write
from ..core.host import Folders
from ..core.version import ROOT, VERSION

ARROW_SUFFIX = ".arrow"
MAX_STORE_BYTES = 4 * 10**9  # bytes, of all files together
STALE_PART_SECONDS = 86_400
TEMPORARY_PREFIX = ".run-"
METADATA_KEY = b"training_pro"
# The phrases that Check looks for are in the keys themselves.
CODE_PATTERNS = (
    *("data/**/*.py", "data/**/*.json", "settings/columns.py"),
    *("engine/tokenizer.py", "chunking.py", "dementor.py"),
)
READ_BYTES = 1 << 22
CHECKSUM_BYTES = 4
# The index has the place in the file of every so many characters: UTF-8 has 1 to 4 bytes for each, so a place
# can't be computed, and an index of all characters would be larger than the text.
INDEX_CHARS = 4096


@dataclass(frozen=True)
class StoreEntry:
    """The stored arrays of one dataset and its metadata."""

    arrays: Mapping[str, Any]
    metadata: Any  # JSON-serializable


@dataclass(frozen=True)
class Store:
    """A folder of prepared data; without a folder nothing is stored or loaded."""

    folder: Path | None = None
    largest: int = MAX_STORE_BYTES

    @staticmethod
    def temporary(folder: Path) -> Store:
        """A store without a limit, in a folder inside this one that is removed with the last use of the store."""
        for path in folder.glob(f"{TEMPORARY_PREFIX}*"):
            with suppress(OSError):
                if time.time() - path.stat().st_mtime > STALE_PART_SECONDS:  # a crash left it behind
                    shutil.rmtree(path, ignore_errors=True)
        try:
            folder.mkdir(parents=True, exist_ok=True)
            own = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX, dir=folder))
        except OSError:  # the folder is read-only
            own = Path(tempfile.mkdtemp(prefix=TEMPORARY_PREFIX))
        store = Store(own, sys.maxsize)
        weakref.finalize(store, shutil.rmtree, own, ignore_errors=True)
        return store

    def load(self, key: str, *, mapped: bool = False) -> StoreEntry | None:
        """The entry of a key, or None where there is no intact one.

        The arrays of a `mapped` entry are read from disk where they are used, and can't be changed.
        """
        if self.folder is None or not key or (arrow := import_pyarrow()) is None:
            return None
        import numpy as np  # here, because the command `runs` works without NumPy

        path = self.folder / (key + ARROW_SUFFIX)
        try:
            if mapped:
                with arrow.memory_map(str(path)) as file:  # the system reads and frees these bytes by itself
                    data = memoryview(file.read_buffer())
            else:
                data = memoryview(path.read_bytes())
            # Arrow trusts what it reads: one wrong number in a file could crash the whole program.
            body, checksum = data[:-CHECKSUM_BYTES], data[-CHECKSUM_BYTES:]
            if zlib.crc32(body) != int.from_bytes(checksum, "little"):
                return None
            with arrow.ipc.open_file(arrow.py_buffer(body)) as reader:
                metadata = json.loads((reader.schema.metadata or {})[METADATA_KEY])
                table = reader.read_all()
            arrays = {}
            for name, dtype in metadata["arrays"].items():
                values = table.column(name).chunk(0).values.to_numpy().view(dtype)
                arrays[name] = values if mapped else np.array(values)
        except (OSError, ValueError, KeyError, TypeError, arrow.ArrowException):
            return None
        if metadata["key"] != key:  # a file that was renamed
            return None
        with suppress(OSError):
            os.utime(path)  # the files used longest ago are removed first
        return StoreEntry(arrays, metadata["said"])

    def save(self, key: str, entry: StoreEntry) -> None:
        """Store an entry and remove the oldest ones beyond the size limit; a full or locked disk is ignored."""
        if self.folder is None or not key or (arrow := import_pyarrow()) is None:
            return
        if sum(array.nbytes for array in entry.arrays.values()) > self.largest:
            return
        import numpy as np

        # One row in which each array is a list, so that arrays of different lengths fit.
        arrays = {name: np.ascontiguousarray(array) for name, array in entry.arrays.items()}
        dtypes = {name: str(array.dtype) for name, array in arrays.items()}
        metadata = json.dumps({"key": key, "arrays": dtypes, "said": entry.metadata}).encode()
        # Arrow packs flags into bits, which NumPy can't map.
        columns = [array.view("uint8") if array.dtype == bool else array for array in arrays.values()]
        lists = [
            arrow.LargeListArray.from_arrays(arrow.array([0, len(a)], arrow.int64()), arrow.array(a))
            for a in columns
        ]
        table = arrow.Table.from_arrays(lists, names=list(arrays)).replace_schema_metadata(
            {METADATA_KEY: metadata}
        )
        path, temporary_name = self.folder / (key + ARROW_SUFFIX), f".{key}-{os.getpid()}{PART_SUFFIX}"
        with suppress(OSError, arrow.ArrowException), atomic_write(path, temporary_name) as temporary:
            with temporary.open("wb") as file, arrow.ipc.new_file(file, table.schema) as writer:
                writer.write_table(table)
            checksum = 0
            with temporary.open("r+b") as written:
                while chunk := written.read(READ_BYTES):
                    checksum = zlib.crc32(chunk, checksum)
                written.write(checksum.to_bytes(CHECKSUM_BYTES, "little"))
        # Remove the files used longest ago beyond the size limit, and partial files that a crash left behind.
        now, free_bytes = time.time(), self.largest
        files = _store_files(self.folder)
        for path, status in sorted(files, key=lambda file: file[1].st_mtime, reverse=True):
            free_bytes -= status.st_size
            is_stale = path.suffix == PART_SUFFIX and now - status.st_mtime > STALE_PART_SECONDS
            if free_bytes < 0 or is_stale:
                with suppress(OSError):
                    path.unlink()


@dataclass(frozen=True, eq=False)
class StoredText:
    """A part of a text; around it lies the rest of the stretches in which its sentences are found.

    stretches   |---------|---------|---------|
    this part        |------------------|
    """

    store: Store
    key: str
    start: int  # of the part, from the first stretch
    end: int
    stretches: tuple[int, ...]  # where each of them ends
    _data: Any
    _index: Any

    @staticmethod
    def save(store: Store, text: str, start: int, end: int, stretches: tuple[int, ...]) -> StoredText:
        """Write a part with its stretches."""
        import numpy as np

        key = cache_key("part", text_digest(text), start, end, stretches)
        pieces = [
            text[place : place + INDEX_CHARS].encode("utf-8", "surrogatepass")
            for place in range(0, len(text), INDEX_CHARS)
        ]
        arrays = {
            "text": np.frombuffer(b"".join(pieces), np.uint8),
            "index": np.fromiter(accumulate(map(len, pieces), initial=0), np.int64),
        }
        store.save(key, StoreEntry(arrays, {"start": start, "end": end, "stretches": stretches}))
        if stored := StoredText.load(store, key):
            return stored
        raise full_error(store)

    @staticmethod
    def load(store: Store, key: str) -> StoredText | None:
        """A part that was written before."""
        if not (entry := store.load(key, mapped=True)):
            return None
        places, arrays = entry.metadata, entry.arrays
        stretches = tuple(places["stretches"])
        return StoredText(store, key, places["start"], places["end"], stretches, arrays["text"], arrays["index"])

    def __len__(self) -> int:
        return self.end - self.start

    def __getitem__(self, places: slice) -> str:
        start, end, _ = places.indices(len(self))
        return self._read(self.start + start, self.start + end)

    def __str__(self) -> str:
        return self._read(self.start, self.end)

    def stretch_texts(self) -> list[str]:
        """The stretches that the part lies in."""
        return [self._read(start, end) for start, end in pairwise((0, *self.stretches))]

    def _read(self, start: int, end: int) -> str:
        first = start // INDEX_CHARS
        low, high = self._index[first], self._index[min(-(-end // INDEX_CHARS), len(self._index) - 1)]
        text: str = self._data[low:high].tobytes().decode("utf-8", "surrogatepass")
        return text[start - first * INDEX_CHARS : end - first * INDEX_CHARS]


def full_error(store: Store) -> DataError:
    """The error where an entry that is needed could not be written."""
    return DataError(
        f"Prepared data can't be written to {store.folder}. Free some disk space: the prepared data of a large "
        "text takes up about four times the size of the text."
    )


def store_size(folders: Folders) -> int:
    """The bytes that prepared data take on disk."""
    return sum(status.st_size for _, status in _store_files(folders.prepared_data))


def clear_store(folders: Folders) -> int:
    """Remove all prepared data and return the bytes that were freed."""
    freed = 0
    for path, status in _store_files(folders.prepared_data):
        with suppress(OSError):
            path.unlink()
            freed += status.st_size
    return freed


def cache_key(*parts: object) -> str:
    """A hash of the `repr` of all parts."""
    return text_digest(repr((VERSION, _code_digest(), *parts)))


def text_digest(text: str) -> str:
    return hashlib.blake2b(text.encode("utf-8", "surrogatepass"), digest_size=20).hexdigest()


def code_files() -> list[Path]:
    """The code and tables that determine what is prepared."""
    return [path for pattern in CODE_PATTERNS for path in ROOT.glob(pattern)]


@cache
def _code_digest() -> str:
    """A digest of this program's code, so that entries of an older version are not used."""
    digest = hashlib.blake2b(digest_size=20)
    for path in sorted(code_files()):
        digest.update(path.read_bytes())
    return digest.hexdigest()


def import_pyarrow() -> Any:
    """pyarrow, a dependency of datasets; without it nothing is stored, and everything else works."""
    try:
        import pyarrow
    except ImportError:
        return None
    return pyarrow


def _store_files(folder: Path) -> list[tuple[Path, os.stat_result]]:
    """Only this store's own files: nothing else in the folder is counted or removed."""
    files = []
    for path in folder.iterdir() if folder.is_dir() else ():
        if path.suffix in (ARROW_SUFFIX, PART_SUFFIX) and path.is_file():
            with suppress(OSError):  # another process has removed it
                files.append((path, path.stat()))
    return files
