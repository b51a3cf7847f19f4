"""Whether weights are numbers at all, in memory and on disk: a LoRA of NaN is never kept as a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.host import Folders
from ...core.jobs import Ended, Job, Note
from ...records.folder import loras
from ..saving import Write
from .finalize import Trained, kept


def is_sound(model: Any) -> bool:
    """Whether what is trained of a model holds numbers only."""
    return all(bool(torch.isfinite(weights).all()) for weights in model.parameters() if weights.requires_grad)


def is_sound_on_disk(folder: Path) -> bool:
    """The same of what lies in a checkpoint's folder; what cannot be read is no number either."""
    try:
        return all(_holds_numbers(file) for file in folder.glob("*.safetensors"))
    except (OSError, SafetensorError):
        return False


def _holds_numbers(file: Path) -> bool:
    opened: Any = safe_open  # older ones say nothing of its types
    with opened(file, framework="pt") as tensors:
        return all(bool(torch.isfinite(tensors.get_tensor(name)).all()) for name in tensors.keys())  # noqa: SIM118


def kept_after_breakdown(trained: Trained, write: Write, folders: Folders, job: Job) -> Ended:
    """What is good of a run that broke down: its last weights, else the last sound checkpoint, else nothing."""
    if not trained.spoiled:
        return kept(trained, write, folders, job)
    folder = trained.run.folder
    for checkpoint in loras.with_weights(folder.path):
        if not is_sound_on_disk(checkpoint):
            loras.remove(checkpoint)
            job.log.append(Note(text=f"{checkpoint.name} holds weights that are no numbers: it is removed."))
    if loras.with_weights(folder.path):
        return kept(trained, write, folders, job)
    folder.discard()
    there = f"What stood in {folder.path} before is there again." if folder.path.exists() else ""
    text = f"{trained.broken}\nNo sound checkpoint was saved before that, so nothing of this run is kept. {there}"
    return Ended(outcome="failed", text=text.strip(), folder=None)
