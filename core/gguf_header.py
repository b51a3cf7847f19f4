"""What a GGUF file says of its model, and of the one that it was made from: its header alone is read."""

from __future__ import annotations

import struct
from collections.abc import Mapping
from pathlib import Path
from typing import Any, BinaryIO

_NUMBERS: Mapping[int, str] = {
    0: "<B", 1: "<b", 2: "<H", 3: "<h", 4: "<I", 5: "<i", 6: "<f", 7: "<?", 10: "<Q", 11: "<q", 12: "<d",
}  # fmt: skip
_TEXT, _LIST = 8, 9


def base_model(path: Path) -> str:
    """The model to download instead, as OWNER/NAME or a name; empty where the file does not say."""
    try:
        said = header(path)
    except (OSError, struct.error, ValueError):
        return ""
    for key in ("general.base_model.0.repo_url", "general.base_model.0.name", "general.basename", "general.name"):
        if isinstance(value := said.get(key), str) and value:
            return value.removeprefix("https://huggingface.co/").strip("/")
    return ""


def header(path: Path) -> dict[str, Any]:
    """The key-value pairs at the head of the file; lists (the vocabulary) are passed over."""
    with path.open("rb") as file:
        _, pairs = _counts(file)
        return dict(_pair(file) for _ in range(pairs))


def tensors(path: Path) -> set[str]:
    """The names of the tensors that it holds."""
    with path.open("rb") as file:
        count, pairs = _counts(file)
        for _ in range(pairs):
            _pair(file)
        return {_tensor(file) for _ in range(count)}


def _counts(file: BinaryIO) -> tuple[int, int]:
    """How many tensors and how many pairs follow."""
    if file.read(4) != b"GGUF":
        raise ValueError("it is not a GGUF file")
    _version, tensors, pairs = struct.unpack("<IQQ", file.read(20))
    return tensors, pairs


def _tensor(file: BinaryIO) -> str:
    """One's name; its sizes, kind and place are passed over."""
    name = _text(file)
    file.seek(8 * _number(file, "<I") + 4 + 8, 1)
    return name


def _pair(file: BinaryIO) -> tuple[str, Any]:
    key = _text(file)
    return key, _value(file, _number(file, "<I"))


def _value(file: BinaryIO, kind: int) -> Any:
    if kind == _TEXT:
        return _text(file)
    if kind == _LIST:
        return _skipped_list(file)
    if kind not in _NUMBERS:
        raise ValueError(f"unknown kind of value {kind}")
    return _number(file, _NUMBERS[kind])


def _skipped_list(file: BinaryIO) -> None:
    kind, count = struct.unpack("<IQ", file.read(12))
    if kind in _NUMBERS:
        file.seek(count * struct.calcsize(_NUMBERS[kind]), 1)
        return
    for _ in range(count):
        _value(file, kind)


def _text(file: BinaryIO) -> str:
    return file.read(_number(file, "<Q")).decode("utf-8", "replace")


def _number(file: BinaryIO, form: str) -> Any:
    return struct.unpack(form, file.read(struct.calcsize(form)))[0]
