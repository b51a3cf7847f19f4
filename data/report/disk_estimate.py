"""Estimate of the disk space that a run takes: its LoRA, its checkpoints, and the free space."""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass, replace
from pathlib import Path

from ...core.files import free_bytes, nearest_existing
from ...core.host import DeviceMemory, ModelCard
from ...settings.definitions import TrainingSettings
from ...train_utils import ModelShape, StepPlan, optimizer_bytes, plural, size
from . import memory_estimate
from .known_architectures import is_known_architecture

RECORD_BYTES = 2_000_000
"""About the size of the graph, its picture, the log and the samples."""
MAX_BACKUPS = 2


@dataclass(frozen=True)
class DiskEstimate:
    """Sizes in bytes: `written` is the sum of all writes, `most` the most that is on disk at once."""

    made: int  # the LoRA, or the model
    checkpoint: int
    checkpoints: int
    written: int
    most: int
    free: int
    whole: bool = False
    """Whether the result is a whole model."""
    exact: bool = True
    """Whether the size is known exactly; a run is never refused for an inexact size."""
    unwritable: str = ""
    """The folder, if it is not writable."""

    def words(self) -> str:
        """Such as 'LoRA 336 MB, 6 checkpoints of 1 GB; 6.4 GB are written ..., at most 4 GB ..., 20 GB free'."""
        made = f"{'model' if self.whole else 'LoRA'} {'' if self.exact else 'about '}{size(self.made)}"
        count = f"{self.checkpoints} {plural(self.checkpoints, 'checkpoint')} of {size(self.checkpoint)}"
        return (
            f"{made}, {count}; {size(self.written)} are written beside the timed backups, at most "
            f"{size(self.most)} lie there at once, {size(self.free)} free"
        )

    def problems(self) -> Iterator[str]:
        if self.unwritable:
            yield f"Disk: {self.unwritable} may not be written. Mend that, or choose another --user-data."
        if self.exact and self.free < self.made + RECORD_BYTES:
            model_or_lora = "model that the run makes" if self.whole else "LoRA alone"
            remedy = "train a LoRA" if self.whole else "choose a lower rank or fewer layers"
            yield (
                f"Disk: the {model_or_lora} takes {size(self.made + RECORD_BYTES)}, and "
                f"{size(self.free)} are free. Free some space, or {remedy}."
            )

    def advice(self) -> Iterator[str]:
        if self.free < self.most and not list(self.problems()):
            yield (
                f"Disk: the run may take {size(self.most)} at once, and {size(self.free)} are free. Free some "
                "space, keep fewer full checkpoints, or save less often."
            )


def estimate_disk(
    settings: TrainingSettings, card: ModelCard, plan: StepPlan, folder: Path, machine: DeviceMemory | None = None
) -> DiskEstimate | None:
    """Estimate the disk space of a run; None where the config does not give the model's size."""
    shape = ModelShape.of(card.config, card.param_counts)
    if shape is None:
        return None
    precision = memory_estimate.weight_precision(card, on_card=memory_estimate.is_gpu(machine))
    result, state = _result_and_state_bytes(settings, shape, 4 if precision == "float32" else 2)
    estimate = _estimate(
        settings, result, result + state, len(set(_saved_steps(settings, plan))), free_bytes(folder)
    )
    exact = card.param_counts is not None or is_known_architecture(card.config, settings.lora.targets)
    unwritable = "" if os.access(parent := nearest_existing(folder), os.W_OK) else str(parent)
    return replace(estimate, exact=exact, unwritable=unwritable)


def _result_and_state_bytes(settings: TrainingSettings, shape: ModelShape, weight_bytes: int) -> tuple[int, int]:
    """Bytes of the result and of the optimizer state; a LoRA is float32, other weights have the model's dtype."""
    state = memory_estimate.optimizer_state_bytes(settings)
    if settings.lora.whole_model:
        weights = shape.linear_weights + shape.other_weights
        return weight_bytes * weights, round(optimizer_bytes(state, weight_bytes) * weights)
    lora = shape.lora_weights(settings.lora.rank, memory_estimate.trained_layers(settings))
    head = shape.vocabulary * shape.hidden if settings.lora.train_head else 0
    trained = head * (1 if shape.tied else 2)  # tied weights are one tensor, but are written twice
    result = 4 * lora + weight_bytes * 2 * head
    return result, round(state * lora + optimizer_bytes(state, weight_bytes) * trained)


def _estimate(settings: TrainingSettings, result: int, full: int, checkpoints: int, free: int) -> DiskEstimate:
    saving = settings.saving
    full_checkpoints = min(checkpoints, saving.keep_checkpoints) + 1  # and the one being written
    backups = MAX_BACKUPS if saving.backup_minutes else 0
    slimmed = max(0, checkpoints - saving.keep_checkpoints)
    return DiskEstimate(
        made=result,
        checkpoint=full,
        checkpoints=checkpoints,
        written=checkpoints * full + result + RECORD_BYTES,
        most=(full_checkpoints + backups) * full + slimmed * result + result + RECORD_BYTES,
        free=free,
        whole=settings.lora.whole_model,
    )


def _saved_steps(settings: TrainingSettings, plan: StepPlan) -> Iterator[int]:
    """Yield the steps whose checkpoints are certain from the settings."""
    if settings.saving.save_each_epoch:
        yield from range(plan.steps_per_epoch, plan.steps, plan.steps_per_epoch)
        yield plan.steps
    if settings.saving.save_every:
        yield from range(settings.saving.save_every, plan.steps + 1, settings.saving.save_every)
