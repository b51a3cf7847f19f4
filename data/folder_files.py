"""The visible files of a folder: neither hidden files nor those that programs leave beside a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..train_utils import natural_key

HIDDEN_PREFIXES = (".", "put-trainer-datasets-here", "~$", "thumbs.db", "ehthumbs.db")
"""Prefixes: the webui's placeholder, Word's lock files, and the thumbnails of Windows Explorer."""


def is_hidden(name: str) -> bool:
    return name.lower().startswith(HIDDEN_PREFIXES)


def visible_files(folder: Path, is_wanted: Callable[[Path], bool]) -> list[Path]:
    """The wanted files, also those in folders inside it, in natural order: chapter 2 before chapter 10."""
    parts = {
        path: path.relative_to(folder).parts for path in folder.rglob("*") if is_wanted(path) and path.is_file()
    }
    visible = [path for path in parts if not any(map(is_hidden, parts[path]))]
    return sorted(visible, key=lambda path: [natural_key(part) for part in parts[path]])
