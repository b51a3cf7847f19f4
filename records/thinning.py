"""What becomes of older checkpoints: a few stay whole, the rest keep the LoRA itself."""

from __future__ import annotations

from pathlib import Path

from ..train_utils import checkpoint_name, checkpoint_step
from . import loras
from .contents import BEST, BY_HAND
from .loras import Checkpoint

BACKUPS_KEPT = 2


def thinned(folder: Path, keep: int, best: int) -> list[Path]:
    """Slim all but the newest `keep`, those saved by hand and the best step; says which were slimmed."""
    for backup in loras.backups(folder)[:-BACKUPS_KEPT]:
        loras.remove(backup.folder)
    _rename_overtaken(folder, best)
    slimmed = [checkpoint.folder for checkpoint in too_many(loras.checkpoints(folder), keep, best)]
    for checkpoint in slimmed:
        loras.slim(checkpoint)
    return slimmed


def too_many(found: list[Checkpoint], keep: int, best: int) -> list[Checkpoint]:
    """Those to slim, of checkpoints that stand from old to new."""
    may_go = [c for c in found if not c.folder.name.endswith(BY_HAND) and c.step != best]
    return may_go[: max(0, len(may_go) - keep)]


def make_room(folder: Path) -> None:
    """On a full disk: the newest checkpoint stays whole, those saved by hand too."""
    for backup in loras.backups(folder)[:-1]:
        loras.remove(backup.folder)
    for checkpoint in too_many(loras.checkpoints(folder), keep=1, best=0):
        loras.slim(checkpoint.folder)


def _rename_overtaken(folder: Path, best: int) -> None:
    """A best one that is overtaken is one like any other."""
    for path in folder.glob(f"checkpoint-*{BEST}"):
        step = checkpoint_step(path.name)
        if step is not None and step != best:
            path.replace(folder / checkpoint_name(step, ""))
