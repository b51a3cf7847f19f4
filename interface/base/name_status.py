"""An existing LoRA or model of the name in the form, and the ways to proceed."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from pathlib import Path

from markupsafe import Markup

from ...core.errors import TrainingProError
from ...core.files import safe_paths
from ...records.folder import loras
from ...settings.definitions import FULL_FINETUNE, TrainingSettings
from .page_context import PageContext
from .setting_links import apply_button


def describe_existing_name(context: PageContext, name: str, chosen: str, method: str) -> Markup:
    """A line with a button for each way to proceed; empty if the name is free or its run is going on."""

    def describe(folder: Path) -> Markup:
        line = Markup('<p class="tp-quiet">{} already exists: {}. {}</p>')
        return line.format(name, loras.describe_folder(folder), _choices(folder, chosen))

    return _of_existing_folder(context, name, method, describe)


def unanswered_choices(context: PageContext, settings: TrainingSettings) -> Markup:
    """The buttons of that line, for a refusal to start; empty if the form has a choice already."""
    what, method = settings.what, settings.lora.method
    if what.if_exists != "ask":
        return Markup()
    return _of_existing_folder(context, what.name, method, partial(_choices, chosen=what.if_exists))


def _of_existing_folder(
    context: PageContext, name: str, method: str, describe: Callable[[Path], Markup]
) -> Markup:
    if not name.strip() or context.is_training(name):
        return Markup()
    try:
        folders = context.host.folders
        folder = safe_paths.child(folders.output_folder(full_finetune=method == FULL_FINETUNE), name, "Name")
        return Markup() if loras.run_status(folder) == "nothing" else describe(folder)
    except (TrainingProError, OSError, ValueError):  # also a name that is too long for the file system
        return Markup()


def _choices(folder: Path, chosen: str) -> Markup:
    """A button for each way to proceed with an existing folder."""
    labels = {
        "continue": _continue_label(folder),
        "replace": "replace it (a backup is kept)",
        "new_name": f"use a new name: {loras.free_name(folder.parent, folder.name)}",
    }
    buttons = (
        apply_button(label, {"if_exists": choice}, chosen=choice == chosen)
        for choice, label in labels.items()
        if label
    )
    return Markup("").join(buttons)


def _continue_label(folder: Path) -> str:
    """The label of "continue"; empty for a full model that is complete."""
    if loras.run_status(folder) not in ("finished", "made elsewhere"):
        return "resume it"
    return "continue training it" if loras.has_lora(folder) else ""
