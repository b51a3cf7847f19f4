"""The disk that a run is expected to fill: its LoRA, its checkpoints, and what is free for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ..core.host import ModelCard
from ..core.writing import free_bytes, standing
from ..settings.declared import TrainingSettings
from ..train_utils import ModelShape, StepPlan, size
from . import expecting

RECORDS = 2_000_000
"""Curve, picture, log and samples: about so much beside the LoRA."""
BACKUPS = 2


@dataclass(frozen=True)
class DiskPlan:
    """In bytes: the LoRA, a checkpoint, all that is written, the most that lies there at once, what is free."""

    lora: int
    checkpoint: int
    checkpoints: int
    written: int
    most: int
    free: int
    exact: bool = True
    unwritable: str = ""
    """The folder that nothing can be written into."""

    def words(self) -> str:
        """'LoRA 336 MB, 6 checkpoints of 1 GB; 6.4 GB are written ..., at most 4 GB at once, 20 GB free'."""
        count = f"{self.checkpoints} checkpoint{'' if self.checkpoints == 1 else 's'} of {size(self.checkpoint)}"
        return (
            f"LoRA {size(self.lora)}, {count}; {size(self.written)} are written beside the timed backups, at most "
            f"{size(self.most)} lie there at once, {size(self.free)} free"
        )

    def problems(self) -> Iterator[str]:
        if self.unwritable:
            yield f"Disk: {self.unwritable} may not be written. Mend that, or choose another --user-data."
        if self.exact and self.free < self.lora + RECORDS:
            yield (
                f"Disk: the LoRA alone takes {size(self.lora + RECORDS)}, and {size(self.free)} are free. Free "
                "some space, or choose a lower rank or fewer layers."
            )

    def advice(self) -> Iterator[str]:
        if self.free < self.most and not list(self.problems()):
            yield (
                f"Disk: the run may take {size(self.most)} at once, and {size(self.free)} are free. Free some "
                "space, keep fewer full checkpoints, or save less often."
            )


def disk_plan(settings: TrainingSettings, card: ModelCard, plan: StepPlan, loras: Path) -> DiskPlan | None:
    """None where the config does not say how large the model is."""
    shape = ModelShape.of(card.config)
    if shape is None:
        return None
    weights = shape.lora_weights(settings.lora.rank, expecting.parts(settings))
    weights += 2 * shape.vocabulary * shape.hidden if settings.lora.train_head else 0
    if settings.lora.method == "full":
        weights = shape.linear_weights + shape.other_weights
    lora = 4 * weights
    full = lora + round(expecting.state_bytes(settings) * weights)
    filled = _filled(settings, lora, full, len(set(_planned(settings, plan))), free_bytes(loras))
    return replace(filled, unwritable="" if os.access(there := standing(loras), os.W_OK) else str(there))


def _filled(settings: TrainingSettings, lora: int, full: int, count: int, free: int) -> DiskPlan:
    saving = settings.saving
    whole = min(count, saving.keep_checkpoints) + 1  # and the one that is being written
    backups = BACKUPS if saving.backup_minutes else 0
    slimmed = max(0, count - saving.keep_checkpoints)
    return DiskPlan(
        lora=lora,
        checkpoint=full,
        checkpoints=count,
        written=count * full + lora + RECORDS,
        most=(whole + backups) * full + slimmed * lora + lora + RECORDS,
        free=free,
        exact=settings.lora.method == "full" or settings.lora.targets in (*expecting.PARTS, "all-linear"),
    )


def _planned(settings: TrainingSettings, plan: StepPlan) -> Iterator[int]:
    """The steps that are saved for sure."""
    if settings.saving.save_each_epoch:
        yield from range(plan.steps_per_epoch, plan.steps, plan.steps_per_epoch)
        yield plan.steps
    if settings.saving.save_every:
        yield from range(settings.saving.save_every, plan.steps + 1, settings.saving.save_every)
