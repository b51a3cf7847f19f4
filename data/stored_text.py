"""Text on disk: a part of a large file, of which stretches are read where they are needed."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import Any

import numpy as np

from . import arrow_store
from .arrow_store import Store, StoreEntry

# The index has the place in the file of every so many characters: UTF-8 has 1 to 4 bytes for each, so a place
# can't be computed, and an index of all characters would be larger than the text.
INDEX_CHARS = 4096


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
        key = arrow_store.cache_key("part", arrow_store.text_digest(text), start, end, stretches)
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
        raise arrow_store.full_error(store)

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
