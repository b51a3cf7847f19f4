"""Retention of checkpoints: a few stay complete, older ones are slimmed to the LoRA."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...core.errors import SavingError
from ...core.files import move_atomically
from ...train_utils import checkpoint_name, checkpoint_step
from . import loras
from .filenames import BEST_SUFFIX, MANUAL_SUFFIX
from .loras import Checkpoint

BACKUPS_KEPT = 2


def thin_checkpoints(folder: Path, keep: int, best: int, start_step: int = 0) -> None:
    """Slim all checkpoints but the newest `keep`, those saved by hand and that of the best step.

    Checkpoints up to the step `start_step` are left alone: a run that resumes from it may still be discarded.
    """
    for backup in _after_step(start_step, loras.backups(folder))[:-BACKUPS_KEPT]:
        loras.remove_checkpoint(backup.folder)
    _rename_former_best(folder, best, start_step)
    for checkpoint in surplus_checkpoints(_after_step(start_step, loras.checkpoints(folder)), keep, best):
        loras.slim_checkpoint(checkpoint.folder)


def surplus_checkpoints(checkpoints: list[Checkpoint], keep: int, best: int) -> list[Checkpoint]:
    """Return the checkpoints to slim, of a list from old to new."""
    removable = [c for c in checkpoints if not c.folder.name.endswith(MANUAL_SUFFIX) and c.step != best]
    return removable[: max(0, len(removable) - keep)]


def free_disk_space(folder: Path, start: Checkpoint | None) -> None:
    """Free space on a full disk; the newest checkpoint, those saved by hand and the start stay complete."""
    step = start.step if start else 0
    with suppress(OSError, SavingError):  # deleting may fail on a full disk too
        for backup in loras.backups(folder)[:-1]:
            if backup != start:
                loras.remove_checkpoint(backup.folder)
        for checkpoint in surplus_checkpoints(loras.checkpoints(folder), keep=1, best=step):
            loras.slim_checkpoint(checkpoint.folder)


def _after_step(step: int, checkpoints: list[Checkpoint]) -> list[Checkpoint]:
    return [checkpoint for checkpoint in checkpoints if checkpoint.step > step]


def _rename_former_best(folder: Path, best: int, start_step: int) -> None:
    """Remove the suffix of best from checkpoints that are no longer the best."""
    for path in folder.glob(f"checkpoint-*{BEST_SUFFIX}"):
        step = checkpoint_step(path.name)
        if step is not None and step > start_step and step != best:
            move_atomically(path, folder / checkpoint_name(step, ""))
