"""Check that weights are finite, in memory and on disk, so that a LoRA of NaN is never saved as a good one."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.host import Folders
from ...core.jobs import Job, JobEnded, Note
from ...records.folder import loras
from ..saving import WriteFn
from .finalize import TrainingResult, save_and_record


def has_finite_weights(model: Any) -> bool:
    """Whether all trained weights of a model are finite."""
    return all(bool(torch.isfinite(weights).all()) for weights in model.parameters() if weights.requires_grad)


def is_finite_checkpoint(folder: Path) -> bool:
    """Whether all weights in the folder of a checkpoint are finite; unreadable files count as not."""
    try:
        return all(_is_finite_file(file) for file in folder.glob("*.safetensors"))
    except (OSError, SafetensorError):
        return False


def _is_finite_file(file: Path) -> bool:
    opened: Any = safe_open  # older versions of safetensors have no type hints for it
    with opened(file, framework="pt") as tensors:
        return all(bool(torch.isfinite(tensors.get_tensor(name)).all()) for name in tensors.keys())  # noqa: SIM118


def save_after_divergence(trained: TrainingResult, write: WriteFn, folders: Folders, job: Job) -> JobEnded:
    """Save what is good of a diverged run: its last weights, else the last finite checkpoint, else nothing."""
    if not trained.spoiled:
        return save_and_record(trained, write, folders, job)
    folder = trained.run.folder
    for checkpoint in loras.checkpoints_with_weights(folder.path):
        if not is_finite_checkpoint(checkpoint):
            loras.remove_checkpoint(checkpoint)
            job.log.append(Note(text=f"{checkpoint.name} holds weights that are no numbers: it is removed."))
    if loras.checkpoints_with_weights(folder.path):
        return save_and_record(trained, write, folders, job)
    folder.discard()
    restored = f"What stood in {folder.path} before is there again." if folder.path.exists() else ""
    reason = "No sound checkpoint was saved before that, so nothing of this run is kept."
    text = f"{trained.divergence}\n{reason} {restored}"
    return JobEnded(outcome="failed", text=text.strip(), folder=None)
