"""What becomes of older checkpoints: a few stay whole, the rest keep the LoRA itself."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

from ...core.errors import SavingError
from ...core.files import moved
from ...train_utils import checkpoint_name, checkpoint_step
from . import loras
from .filenames import BEST, BY_HAND
from .loras import Checkpoint

BACKUPS_KEPT = 2


def thinned(folder: Path, keep: int, best: int, since: int = 0) -> None:
    """Slim all but the newest `keep`, those saved by hand and the best step.

    What was there at the step `since` is left alone: a part that goes on from it may still be thrown away.
    """
    for backup in _behind(since, loras.backups(folder))[:-BACKUPS_KEPT]:
        loras.remove(backup.folder)
    _rename_overtaken(folder, best, since)
    for checkpoint in too_many(_behind(since, loras.checkpoints(folder)), keep, best):
        loras.slim(checkpoint.folder)


def too_many(found: list[Checkpoint], keep: int, best: int) -> list[Checkpoint]:
    """Those to slim, of checkpoints that stand from old to new."""
    may_go = [c for c in found if not c.folder.name.endswith(BY_HAND) and c.step != best]
    return may_go[: max(0, len(may_go) - keep)]


def make_room(folder: Path, start: Checkpoint | None) -> None:
    """On a full disk: the newest checkpoint stays whole, those saved by hand and what the run went on from too."""
    step = start.step if start else 0
    with suppress(OSError, SavingError):  # a disk that takes nothing may not give anything back either
        for backup in loras.backups(folder)[:-1]:
            if backup != start:
                loras.remove(backup.folder)
        for checkpoint in too_many(loras.checkpoints(folder), keep=1, best=step):
            loras.slim(checkpoint.folder)


def _behind(step: int, found: list[Checkpoint]) -> list[Checkpoint]:
    return [checkpoint for checkpoint in found if checkpoint.step > step]


def _rename_overtaken(folder: Path, best: int, since: int) -> None:
    """A best one that is overtaken is one like any other."""
    for path in folder.glob(f"checkpoint-*{BEST}"):
        step = checkpoint_step(path.name)
        if step is not None and step > since and step != best:
            moved(path, folder / checkpoint_name(step, ""))
