"""An existing LoRA or model of the name in the form, and the ways to proceed."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...records.folder import loras
from ...settings.definitions import FULL
from . import markup
from .page_context import Joined


def taken(context: Joined, name: str, chosen: str, method: str) -> str:
    """A line with a button for each way to proceed; empty if the name is free or its run is going on."""
    if not name.strip() or context.trains(name):
        return ""
    try:
        folders = context.host.folders
        folder = safe_paths.child(folders.kept(whole_model=method == FULL), name, "Name")
        if loras.standing(folder) == "nothing":
            return ""
        free = loras.free_name(folder.parent, name)
        return markup.exists(name, loras.what_stands(folder), _continue_label(folder), chosen, free)
    except (TrainingProError, OSError, ValueError):  # also a name that is too long for the file system
        return ""


def _continue_label(folder: Path) -> str:
    """The label of "continue"; empty for a full model that is complete."""
    if loras.standing(folder) not in ("finished", "made elsewhere"):
        return "go on with it"
    return "train it further" if loras.has_lora(folder) else ""
