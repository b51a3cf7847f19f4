"""The user's own note on a LoRA: a text file in its folder."""

from __future__ import annotations

from pathlib import Path

from ...core.files import write_text
from .filenames import NOTES


def note(folder: Path) -> str:
    """What the user noted; empty where there is nothing."""
    try:
        return (folder / NOTES).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def leave_note(folder: Path, text: str) -> None:
    """Keep this note instead of the one that is there; an empty one removes it."""
    if text.strip():
        write_text(folder / NOTES, text.strip() + "\n")
    else:
        (folder / NOTES).unlink(missing_ok=True)
