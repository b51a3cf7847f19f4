"""The user's own note on a LoRA: a text file in its folder."""

from __future__ import annotations

from pathlib import Path

from ...core.files import write_text
from .filenames import NOTES


def note(folder: Path) -> str:
    """Read the note, or return an empty string."""
    try:
        return (folder / NOTES).read_text(encoding="utf-8-sig").strip()
    except (OSError, UnicodeDecodeError):
        return ""


def leave_note(folder: Path, text: str) -> None:
    """Replace the note; an empty text removes it."""
    if text.strip():
        write_text(folder / NOTES, text.strip() + "\n")
    else:
        (folder / NOTES).unlink(missing_ok=True)
