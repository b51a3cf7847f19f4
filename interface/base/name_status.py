"""What stands under a name already, and what may be done about it."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...records.folder import loras
from ...settings.definitions import FULL
from . import markup
from .page_context import Joined


def taken(joined: Joined, name: str, chosen: str, method: str) -> str:
    """In words, with a click for each way on; nothing where the name is free, or is being made just now."""
    if not name.strip() or joined.trains(name):
        return ""
    try:
        folders = joined.host.folders
        folder = safe_paths.child(folders.kept(whole_model=method == FULL), name, "Name")
        if loras.standing(folder) == "nothing":
            return ""
        free = loras.free_name(folder.parent, name)
        return markup.exists(name, loras.what_stands(folder), _going_on(folder), chosen, free)
    except (TrainingProError, OSError, ValueError):  # also a name longer than the system can have
        return ""


def _going_on(folder: Path) -> str:
    """What continue would do; nothing for a whole model that is complete."""
    if loras.standing(folder) not in ("finished", "made elsewhere"):
        return "go on with it"
    return "train it further" if loras.has_lora(folder) else ""
