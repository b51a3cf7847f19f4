"""Files written whole: aside first, then renamed, so that a kill at any moment leaves the old or the new."""

from __future__ import annotations

import errno
import json
import math
import os
import shutil
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..train_utils import size
from .errors import first_line


def write_text(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    written = path.with_name(path.name + ".part")
    written.write_text(text, encoding="utf-8")
    written.replace(path)


def read_json(path: Path, otherwise: Any) -> Any:
    """What stands in a JSON file, if it is of the same kind as `otherwise`; that where it cannot be read."""
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return otherwise
    return found if isinstance(found, type(otherwise)) else otherwise


def write_json(path: Path, value: Any) -> None:
    write_text(path, as_json(value, indent=2) + "\n")


def as_json(value: Any, *, indent: int | None = None) -> str:
    """JSON that every program reads: what is no number (NaN, infinity) is null in it."""
    return json.dumps(_finite(value), indent=indent, ensure_ascii=False, default=str, allow_nan=False)


def _finite(value: Any) -> Any:
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    if isinstance(value, Mapping):
        return {key: _finite(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [_finite(item) for item in value]
    return value


def settle(folder: Path) -> None:
    """Wait until the files of a folder are on the disk itself, so that a power cut leaves them whole."""
    for file in folder.iterdir():
        if file.is_file():
            with file.open("rb+") as opened:
                os.fsync(opened.fileno())


def why_not_written(error: Exception, folder: Path) -> str:
    """What stands in the way of writing, in words."""
    number = getattr(error, "errno", None)
    free = free_bytes(folder)
    if number in (errno.ENOSPC, errno.EDQUOT) or "space left" in str(error) or free < 100_000:
        return f"the disk is full ({size(free)} free)"
    if isinstance(error, PermissionError):
        return f"{Path(error.filename or folder).name} may not be written, or another program holds it open"
    if number == errno.EROFS:
        return "the folder is read-only"
    return first_line(error)


def free_bytes(folder: Path) -> int:
    """Where a folder stands or will stand."""
    return shutil.disk_usage(standing(folder)).free


def standing(folder: Path) -> Path:
    """The folder, or the one nearest above it that is there."""
    return next((path for path in (folder, *folder.parents) if path.exists()), Path())
