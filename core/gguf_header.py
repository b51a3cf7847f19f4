"""Metadata from the header of a GGUF file; the tensor data is not read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

_NUMBER_FORMATS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_STRING, _ARRAY = 8, 9


def find_base_model(path: Path) -> str:
    """Original model of the file, as OWNER/NAME or a name; empty if the header does not say."""
    try:
        pairs = read_header(path)
    except (OSError, struct.error, ValueError):
        return ""
    for key in ("general.base_model.0.repo_url", "general.base_model.0.name", "general.basename", "general.name"):
        if isinstance(value := pairs.get(key), str) and value:
            return value.removeprefix("https://huggingface.co/").strip("/")
    return ""


def read_header(path: Path) -> dict[str, Any]:
    """Read the key-value pairs of the header; lists, such as the vocabulary, are skipped."""
    with path.open("rb") as file:
        _, pairs = _read_counts(file)
        return dict(_read_pair(file) for _ in range(pairs))


def read_tensor_names(path: Path) -> set[str]:
    """Read the names of the tensors."""
    with path.open("rb") as file:
        count, pairs = _read_counts(file)
        for _ in range(pairs):
            _read_pair(file)
        return {_read_tensor_name(file) for _ in range(count)}


def _read_counts(file: BinaryIO) -> tuple[int, int]:
    """Read the magic number; return the number of tensors and of key-value pairs."""
    if file.read(4) != b"GGUF":
        raise ValueError("it is not a GGUF file")
    _version, tensors, pairs = struct.unpack("<IQQ", file.read(20))
    return tensors, pairs


def _read_tensor_name(file: BinaryIO) -> str:
    """Read the name of a tensor; its shape, type and offset are skipped."""
    name = _read_string(file)
    file.seek(8 * _read_number(file, "<I") + 4 + 8, 1)
    return name


def _read_pair(file: BinaryIO) -> tuple[str, Any]:
    key = _read_string(file)
    return key, _read_value(file, _read_number(file, "<I"))


def _read_value(file: BinaryIO, value_type: int) -> Any:
    if value_type == _STRING:
        return _read_string(file)
    if value_type == _ARRAY:
        return _skip_array(file)
    if value_type not in _NUMBER_FORMATS:
        raise ValueError(f"unknown kind of value {value_type}")
    return _read_number(file, _NUMBER_FORMATS[value_type])


def _skip_array(file: BinaryIO) -> None:
    value_type, count = struct.unpack("<IQ", file.read(12))
    if value_type in _NUMBER_FORMATS:
        file.seek(count * struct.calcsize(_NUMBER_FORMATS[value_type]), 1)
        return
    for _ in range(count):
        _read_value(file, value_type)


def _read_string(file: BinaryIO) -> str:
    return file.read(_read_number(file, "<Q")).decode("utf-8", "replace")


def _read_number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]
