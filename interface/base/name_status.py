"""An existing LoRA or model of the name in the form, and the ways to proceed."""

from __future__ import annotations

from pathlib import Path

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...records.folder import loras
from ...settings.definitions import FULL_FINETUNE
from .page_context import PageContext
from .setting_links import apply_button


def describe_existing_name(context: PageContext, name: str, chosen: str, method: str) -> str:
    """A line with a button for each way to proceed; empty if the name is free or its run is going on."""
    if not name.strip() or context.is_training(name):
        return ""
    try:
        folders = context.host.folders
        folder = safe_paths.child(folders.output_folder(full_finetune=method == FULL_FINETUNE), name, "Name")
        if loras.run_status(folder) == "nothing":
            return ""
        labels = {
            "continue": _continue_label(folder),
            "replace": "replace it (keeps a backup)",
            "new_name": f"use a new name: {loras.free_name(folder.parent, name)}",
        }
        buttons = Markup("").join(
            apply_button(label, {"if_exists": choice}, chosen=choice == chosen)
            for choice, label in labels.items()
            if label
        )
        line = Markup('<p class="tp-quiet">{} already exists: {}. {}</p>')
        return line.format(name, loras.describe_folder(folder), buttons)
    except (TrainingProError, OSError, ValueError):  # also a name that is too long for the file system
        return ""


def _continue_label(folder: Path) -> str:
    """The label of "continue"; empty for a full model that is complete."""
    if loras.run_status(folder) not in ("finished", "made elsewhere"):
        return "resume it"
    return "continue training it" if loras.has_lora(folder) else ""
