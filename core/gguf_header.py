"""Metadata from the header of a GGUF file; the tensor data is not read."""

from __future__ import annotations

import struct
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO

MAX_STRING_BYTES, MAX_ARRAY_BYTES = 16_000_000, 1_000_000_000
MAX_VALUES = 4_000_000
"""The largest vocabularies have a million tokens, merges and scores; a hostile header claims any number."""
MAX_DEPTH = 4
DAMAGED = "its header is damaged or incomplete"

_NUMBER_FORMATS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


def find_base_model(path: Path) -> str:
    """Original model of the file, as OWNER/NAME or a name; empty if the header does not say."""
    try:
        pairs = read_header(path)
    except (OSError, ValueError):
        return ""
    for key in ("general.base_model.0.repo_url", "general.base_model.0.name", "general.basename", "general.name"):
        if isinstance(value := pairs.get(key), str) and value:
            return value.removeprefix("https://huggingface.co/").strip("/")
    return ""


def read_header(path: Path) -> dict[str, Any]:
    """Read the key-value pairs of the header; lists, such as the vocabulary, are skipped."""
    with _open_header(path) as header:
        return dict(header.pair() for _ in range(header.pairs))


def read_tensor_names(path: Path) -> set[str]:
    """Read the names of the tensors."""
    with _open_header(path) as header:
        for _ in range(header.pairs):
            header.pair()
        return {header.tensor_name() for _ in range(header.tensors)}


@contextmanager
def _open_header(path: Path) -> Iterator[_Header]:
    """Open a file behind its magic number and its numbers of tensors and pairs; a ValueError if it is no GGUF."""
    with path.open("rb") as file:
        header = _Header(file)
        if file.read(4) != b"GGUF":
            raise ValueError("it is not a GGUF file")
        header.number("<I")  # the version
        header.tensors, header.pairs = header.number("<Q"), header.number("<Q")
        yield header


@dataclass
class _Header:
    """The open file, read from here on, and how many values may still be read."""

    file: BinaryIO
    tensors: int = 0
    pairs: int = 0
    values_left: int = MAX_VALUES

    def pair(self) -> tuple[str, Any]:
        key = self.string()
        return key, self.value(self.number("<I"))

    def tensor_name(self) -> str:
        """Read the name of a tensor; its shape, type and offset are skipped."""
        name = self.string()
        self.skip(8 * self.number("<I") + 4 + 8)
        return name

    def value(self, value_type: int, depth: int = 0) -> Any:
        if value_type == _STRING:
            return self.string()
        if value_type == _ARRAY and depth < MAX_DEPTH:
            return self.skip_array(depth + 1)
        if value_type not in _NUMBER_FORMATS:
            raise ValueError(f"unknown value type {value_type}")
        return self.number(_NUMBER_FORMATS[value_type])

    def skip_array(self, depth: int) -> None:
        value_type, count = self.number("<I"), self.number("<Q")
        if value_type in _NUMBER_FORMATS:
            self.skip(count * struct.calcsize(_NUMBER_FORMATS[value_type]))
            return
        for _ in range(count):
            self.value(value_type, depth)

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def take(self, count: int) -> bytes:
        """Read so many bytes."""
        self.values_left -= 1
        data = self.file.read(count) if count <= MAX_STRING_BYTES and self.values_left else b""
        if len(data) < count or not self.values_left:
            raise ValueError(DAMAGED)
        return data

    def skip(self, count: int) -> None:
        if count > MAX_ARRAY_BYTES:
            raise ValueError(DAMAGED)
        self.file.seek(count, 1)
