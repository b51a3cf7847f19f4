"""Files on disk: atomic writes, file locks and safe paths."""

from __future__ import annotations

from . import safe_paths
from .atomic_files import (
    PART,
    as_json,
    cleared_away,
    free_bytes,
    is_full,
    making_beside,
    moved,
    moved_when_new,
    patiently,
    read_json,
    settle,
    standing,
    why_not_written,
    write_json,
    write_text,
    written_whole,
)
from .locks import is_locked, lock, removed
from .safe_paths import descendant, name_fault

__all__ = [
    "PART",
    "as_json",
    "cleared_away",
    "descendant",
    "free_bytes",
    "is_full",
    "is_locked",
    "lock",
    "making_beside",
    "moved",
    "moved_when_new",
    "name_fault",
    "patiently",
    "read_json",
    "removed",
    "safe_paths",
    "settle",
    "standing",
    "why_not_written",
    "write_json",
    "write_text",
    "written_whole",
]
