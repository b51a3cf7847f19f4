"""Names in a folder of the user's: those that can be used, and a sentence about those that cannot."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from ...train_utils import plural
from ..readable import quote
from .safe_paths import has_impossible_character

MAX_SHOWN_NAMES = 3


def usable_entries(folder: Path) -> list[Path]:
    """The entries of a folder whose names are text; none if there is no such folder.

    A name of other bytes, from another system or an old archive, can be shown on no page and written into no file.
    """
    if not folder.is_dir():
        return []
    return [path for path in folder.iterdir() if not has_impossible_character(path.name)]


def modified_at(path: Path) -> float:
    """Return when a file was last written; 0 for one that has gone, or for a link that leads nowhere."""
    try:
        return path.stat().st_mtime
    except OSError:
        return 0.0


def describe_unusable(folders: Iterable[Path]) -> list[str]:
    """Say of each folder which of its names can't be used, and what to do."""
    return [sentence for folder in folders if (sentence := _describe(folder))]


def _describe(folder: Path) -> str:
    names = sorted(path.name for path in folder.iterdir()) if folder.is_dir() else []
    unusable = [name for name in names if has_impossible_character(name)]
    if not unusable:
        return ""
    shown = ", ".join(map(quote, unusable[:MAX_SHOWN_NAMES])) + (" and more" * (len(unusable) > MAX_SHOWN_NAMES))
    names_are, them = plural(len(unusable), "name is", "names are"), plural(len(unusable), "it", "them")
    return f"{folder}: {len(unusable)} {names_are} not valid UTF-8 and can't be used: {shown}. Rename {them}."
