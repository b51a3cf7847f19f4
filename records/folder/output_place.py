"""Places for what a user writes: a merged model or a GGUF file, never into what is already there."""

from __future__ import annotations

from pathlib import Path

from ...core.errors import SavingError, first_line
from ...core.files import safe_paths
from ...core.host import Folders
from ...core.readable import quote
from . import loras
from .filenames import PARAMETERS, is_hidden

MODEL_CONFIG = "config.json"


def choose_output(text: str, folders: Folders, *, own: Path | None = None) -> Path:
    """Return the absolute path of a new file or folder; refuse one inside a LoRA, a model or a folder of ours.

    `own` is the LoRA that is written out: its files may lie beside it.
    """
    if not text.strip() or "\x00" in text:
        raise SavingError(f"{quote(text)} is not a path. Enter the path of a new file or folder.")
    out = _absolute(text)
    if problem := safe_paths.name_fault(out.name):
        raise SavingError(f"{quote(out.name)} {problem}. Choose another name.")
    try:
        place = out.resolve()
        owner = next((f for f in (place, *place.parents) if _description(f, folders)), None)
    except (OSError, RuntimeError, ValueError) as error:  # a path that is too long, or a link to itself
        raise SavingError(f"{out} can't be written: {first_line(error)}. Choose another folder.") from error
    if owner is not None and (own is None or owner != own.resolve()):
        raise SavingError(
            f"{out} is {'' if owner == place else 'in '}{_description(owner, folders)}. Choose a separate folder."
        )
    return out


def _absolute(text: str) -> Path:
    try:
        return Path(text).expanduser().absolute()
    except RuntimeError as error:  # ~NAME, without a user of that name
        raise SavingError(f"The user named in {quote(text)} does not exist. Enter another path.") from error


def _description(folder: Path, folders: Folders) -> str:
    """What a folder belongs to, in words; empty if it is free."""
    if loras.has_lora(folder) or _is_run(folder, folders):
        return f"the folder of the LoRA {quote(folder.name)}"
    in_models = folder.parent == folders.models.resolve()
    if loras.has_weights(folder) or (in_models and (folder / MODEL_CONFIG).is_file()):
        return f"the folder of the model {quote(folder.name)}"
    if folder in {path.resolve() for path in (folders.training, folders.logs, folders.examples)}:
        return f"Training PRO's own folder {quote(folder.name)}"
    if folder.parent == folders.loras.resolve() and is_hidden(folder):
        return "the trash"
    return ""


def _is_run(folder: Path, folders: Folders) -> bool:
    return (folder / PARAMETERS).is_file() or (folder.parent == folders.loras.resolve() and folder.is_dir())
