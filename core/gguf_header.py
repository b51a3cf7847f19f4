"""Metadata from the header of a GGUF file; the tensor data is not read.

The layout (https://github.com/ggml-org/ggml/blob/master/docs/gguf.md): the magic number, the version, the numbers
of tensors and of pairs, the pairs of keys and values, and then the name, shape, type and place of each tensor.
"""

from __future__ import annotations

import math
import re
import struct
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, NamedTuple

# The largest vocabularies have a million tokens, merges and scores; a hostile header claims any number.
MAX_STRING_BYTES, MAX_ARRAY_BYTES, MAX_VALUES, MAX_DEPTH = 16_000_000, 1_000_000_000, 4_000_000, 4
MAX_DIMENSIONS, MAX_PARTS, MAX_SMALL = 4, 1000, 4096
DAMAGED = "its header is damaged or incomplete"
NUMBER_FORMATS = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
STRING, ARRAY, FLOAT = 8, 9, NUMBER_FORMATS[6]
# The types of tensors whose blocks transformers unpacks with torch (`transformers.integrations.gguf.dequant`):
# Q4_0, Q4_1, Q8_0, Q2_K to Q6_K, and IQ1 to IQ4.
PACKED_TYPES = frozenset({2, 3, 8, *range(10, 15), *range(16, 24), 29})
PART = re.compile(r"-(\d{5})-of-(\d{5})\.gguf$")


class TensorInfo(NamedTuple):
    """The shape of a tensor, innermost dimension first, and its type."""

    shape: tuple[int, ...]
    type: int


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
    with path.open("rb") as file:
        return _Header(file).pairs


def is_made_for(lora: Path, model: Path) -> bool:
    """Whether what a LoRA says of its base model, such as the heads that order its rows, is true of this one."""
    try:
        base, header = read_header(lora), read_header(model)
    except (OSError, ValueError):
        return False
    of_base = ("general.architecture", f"{base.get('general.architecture')}.")
    return all(header.get(key, value) == value for key, value in base.items() if key.startswith(of_base))


def read_tensors(path: Path) -> dict[str, TensorInfo]:
    """Read the names, shapes and types of the tensors, in all parts of the model."""
    tensors: dict[str, TensorInfo] = {}
    for part in file_parts(path):
        with part.open("rb") as file:
            tensors |= {name: info for name, info, _ in _Header(file).tensor_infos()}
    return tensors


def read_floats(path: Path, name: str) -> list[float]:
    """Read a small tensor of float32 numbers."""
    for part in file_parts(path):
        with part.open("rb") as file:
            header = _Header(file)
            found = [(info, place) for other, info, place in header.tensor_infos() if other == name]
            for info, place in found:
                alignment, count = int(header.pairs.get("general.alignment", 32)), math.prod(info.shape)
                if info.type or count > MAX_SMALL:
                    raise ValueError(DAMAGED)
                file.seek(-file.tell() % alignment + place, 1)
                return [value for (value,) in struct.iter_unpack(FLOAT, header.take(4 * count))]
    raise ValueError(DAMAGED)


def file_parts(path: Path) -> list[Path]:
    """The files of a model, which llama-gguf-split may have divided into NAME-00001-of-0000N.gguf."""
    match = PART.search(path.name)
    if match is None:
        return [path]
    count, stem = int(match[2]), path.name[: match.start()]
    if count > MAX_PARTS:
        raise ValueError(f"it says that it has {count} parts")
    parts = [path.with_name(f"{stem}-{number:05}-of-{count:05}.gguf") for number in range(1, count + 1)]
    if missing := [part.name for part in parts if not part.is_file()]:
        raise ValueError(f"{missing[0]} is missing")
    return parts


class _Header:
    """The open file behind its pairs, and how many values may still be read; a ValueError if it is no GGUF."""

    def __init__(self, file: BinaryIO) -> None:
        self._file, self._values_left = file, MAX_VALUES
        if file.read(4) != b"GGUF":
            raise ValueError("it is not a GGUF file")
        self.number("<I")  # the version
        self.tensors, count = self.number("<Q"), self.number("<Q")
        self.pairs = {}
        for _ in range(count):
            key = self.string()
            self.pairs[key] = self._value(self.number("<I"))

    def _value(self, value_type: int, depth: int = 0) -> Any:
        if value_type == STRING:
            return self.string()
        if value_type in NUMBER_FORMATS:
            return self.number(NUMBER_FORMATS[value_type])
        if value_type != ARRAY or depth >= MAX_DEPTH:
            raise ValueError(f"unknown value type {value_type}")
        item_type, count = self.number("<I"), self.number("<Q")
        if item_type in NUMBER_FORMATS:
            self.skip(count * struct.calcsize(NUMBER_FORMATS[item_type]))
        else:
            for _ in range(count):
                self._value(item_type, depth + 1)
        return None

    def tensor_infos(self) -> Iterator[tuple[str, TensorInfo, int]]:
        """Yield the name of each tensor, what it is, and its place in the data; they follow the pairs."""
        for _ in range(self.tensors):
            name, dimensions = self.string(), self.number("<I")
            if dimensions > MAX_DIMENSIONS:
                raise ValueError(DAMAGED)
            shape = tuple(self.number("<Q") for _ in range(dimensions))
            yield name, TensorInfo(shape, self.number("<I")), self.number("<Q")

    def string(self) -> str:
        return self.take(self.number("<Q")).decode("utf-8", "replace")

    def number(self, form: str) -> Any:
        return struct.unpack(form, self.take(struct.calcsize(form)))[0]

    def take(self, count: int) -> bytes:
        self._values_left -= 1
        data = self._file.read(count) if count <= MAX_STRING_BYTES and self._values_left else b""
        if len(data) < count or not self._values_left:
            raise ValueError(DAMAGED)
        return data

    def skip(self, count: int) -> None:
        if count > MAX_ARRAY_BYTES:
            raise ValueError(DAMAGED)
        self._file.seek(count, 1)
