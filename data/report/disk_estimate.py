"""The disk that a run is expected to fill: its LoRA, its checkpoints, and what is free for them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.files import free_bytes, standing
from ...core.host import Memory, ModelCard
from ...settings.definitions import TrainingSettings
from ...train_utils import ModelShape, StepPlan, kept_of_a_weight, plural, size
from . import memory_estimate
from .known_architectures import is_known

RECORDS = 2_000_000
"""Curve, picture, log and samples: about so much beside the LoRA."""
BACKUPS = 2


@dataclass(frozen=True)
class DiskPlan:
    """In bytes: what is made, a checkpoint, all that is written, the most there is at once, what is free."""

    made: int  # the LoRA, or the model
    checkpoint: int
    checkpoints: int
    written: int
    most: int
    free: int
    whole: bool = False
    """It is a model of its own."""
    exact: bool = True
    """Whether its size is known; otherwise it may be some way off, and nothing is refused for it."""
    unwritable: str = ""
    """The folder that nothing can be written into."""

    def words(self) -> str:
        """'LoRA 336 MB, 6 checkpoints of 1 GB; 6.4 GB are written ..., at most 4 GB at once, 20 GB free'."""
        made = f"{'model' if self.whole else 'LoRA'} {'' if self.exact else 'about '}{size(self.made)}"
        count = f"{self.checkpoints} {plural(self.checkpoints, 'checkpoint')} of {size(self.checkpoint)}"
        return (
            f"{made}, {count}; {size(self.written)} are written beside the timed backups, at most "
            f"{size(self.most)} lie there at once, {size(self.free)} free"
        )

    def problems(self) -> Iterator[str]:
        if self.unwritable:
            yield f"Disk: {self.unwritable} may not be written. Mend that, or choose another --user-data."
        if self.exact and self.free < self.made + RECORDS:
            what = "model that the run makes" if self.whole else "LoRA alone"
            less = "train a LoRA" if self.whole else "choose a lower rank or fewer layers"
            yield (
                f"Disk: the {what} takes {size(self.made + RECORDS)}, and {size(self.free)} are free. Free "
                f"some space, or {less}."
            )

    def advice(self) -> Iterator[str]:
        if self.free < self.most and not list(self.problems()):
            yield (
                f"Disk: the run may take {size(self.most)} at once, and {size(self.free)} are free. Free some "
                "space, keep fewer full checkpoints, or save less often."
            )


def disk_plan(
    settings: TrainingSettings, card: ModelCard, plan: StepPlan, folder: Path, machine: Memory | None = None
) -> DiskPlan | None:
    """None where the config does not say how large the model is."""
    shape = ModelShape.of(card.config, card.counted)
    if shape is None:
        return None
    held = memory_estimate.weights_as(card, on_card=memory_estimate.is_on_card(machine))
    made, kept = _bytes(settings, shape, 4 if held == "float32" else 2)
    filled = _filled(settings, made, made + kept, len(set(_planned(settings, plan))), free_bytes(folder))
    exact = card.counted is not None or is_known(card.config, settings.lora.targets)
    unwritable = "" if os.access(there := standing(folder), os.W_OK) else str(there)
    return replace(filled, exact=exact, unwritable=unwritable)


def _bytes(settings: TrainingSettings, shape: ModelShape, own: int) -> tuple[int, int]:
    """Of what is made, and of what its optimizer keeps; a LoRA is float32, all else has the model's own type."""
    state = memory_estimate.state_bytes(settings)
    if settings.lora.whole_model:
        weights = shape.linear_weights + shape.other_weights
        return own * weights, round(kept_of_a_weight(state, own) * weights)
    lora = shape.lora_weights(settings.lora.rank, memory_estimate.parts(settings))
    head = shape.vocabulary * shape.hidden if settings.lora.train_head else 0
    learned = head * (1 if shape.tied else 2)  # where they are one tensor, it is still written twice
    return 4 * lora + own * 2 * head, round(state * lora + kept_of_a_weight(state, own) * learned)


def _filled(settings: TrainingSettings, made: int, full: int, count: int, free: int) -> DiskPlan:
    saving = settings.saving
    whole = min(count, saving.keep_checkpoints) + 1  # and the one that is being written
    backups = BACKUPS if saving.backup_minutes else 0
    slimmed = max(0, count - saving.keep_checkpoints)
    return DiskPlan(
        made=made,
        checkpoint=full,
        checkpoints=count,
        written=count * full + made + RECORDS,
        most=(whole + backups) * full + slimmed * made + made + RECORDS,
        free=free,
        whole=settings.lora.whole_model,
    )


def _planned(settings: TrainingSettings, plan: StepPlan) -> Iterator[int]:
    """The steps that are saved for sure."""
    if settings.saving.save_each_epoch:
        yield from range(plan.steps_per_epoch, plan.steps, plan.steps_per_epoch)
        yield plan.steps
    if settings.saving.save_every:
        yield from range(settings.saving.save_every, plan.steps + 1, settings.saving.save_every)
