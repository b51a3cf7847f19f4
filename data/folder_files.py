"""Which files of a folder are seen: neither hidden ones nor what programs put beside a user's own."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from ..train_utils import natural_key

UNSEEN = (".", "put-trainer-datasets-here", "~$", "thumbs.db", "ehthumbs.db")
"""How they begin: the webui's sign, what Word keeps beside a document that is open, pictures of the Explorer's."""


def is_hidden(name: str) -> bool:
    return name.lower().startswith(UNSEEN)


def seen(folder: Path, wanted: Callable[[Path], bool]) -> list[Path]:
    """Those that are wanted, also in the folders inside it, in natural order: chapter 2 before chapter 10."""
    parts = {path: path.relative_to(folder).parts for path in folder.rglob("*") if wanted(path) and path.is_file()}
    found = [path for path in parts if not any(map(is_hidden, parts[path]))]
    return sorted(found, key=lambda path: [natural_key(part) for part in parts[path]])
