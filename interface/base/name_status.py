"""An existing LoRA or model of the name in the form, and the ways to proceed."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...records.folder import loras
from ...settings.definitions import FULL_FINETUNE
from . import markup
from .page_context import PageContext


def describe_existing_name(context: PageContext, name: str, chosen: str, method: str) -> str:
    """A line with a button for each way to proceed; empty if the name is free or its run is going on."""
    if not name.strip() or context.is_training(name):
        return ""
    try:
        folders = context.host.folders
        folder = safe_paths.child(folders.output_folder(full_finetune=method == FULL_FINETUNE), name, "Name")
        if loras.run_status(folder) == "nothing":
            return ""
        free = loras.free_name(folder.parent, name)
        return markup.existing_name_line(
            name, loras.describe_folder(folder), _continue_label(folder), chosen, free
        )
    except (TrainingProError, OSError, ValueError):  # also a name that is too long for the file system
        return ""


def _continue_label(folder: Path) -> str:
    """The label of "continue"; empty for a full model that is complete."""
    if loras.run_status(folder) not in ("finished", "made elsewhere"):
        return "go on with it"
    return "train it further" if loras.has_lora(folder) else ""
