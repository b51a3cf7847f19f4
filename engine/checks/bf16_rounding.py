"""Advice on learning rates so small that bfloat16 weights round the steps away."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.host import Host
from ...settings.definitions import TrainingSettings
from .requirements import DeviceInfo

SAFE_LR = 1e-4
"""Smallest learning rate without notable loss; measured, see docs/engine.md."""


def host_rounding_advice(settings: TrainingSettings, host: Host) -> list[str]:
    """Advice for the model as it is loaded or will be loaded."""
    return list(rounding_advice(settings, DeviceInfo.of(host).kind))


def rounding_advice(settings: TrainingSettings, dtype: str) -> Iterator[str]:
    """Advice for training weights of this dtype; a LoRA itself is always float32."""
    rate = settings.learning.learning_rate * (settings.lora.head_rate if settings.lora.train_head else 1)
    if dtype != "bfloat16" or rate >= SAFE_LR:
        return
    cause = (
        "the model is held in bfloat16, and a step that changes a weight by less than 1/256 is rounded away. At a "
        f"learning rate of {rate:g}"
    )
    if settings.lora.whole_model:
        yield f"Method full: {cause} many of them are. Load the model in float32, or use {SAFE_LR:g} or more."
    elif settings.lora.train_head:
        yield (
            f"Train Head: {cause} many steps of embeddings and head are; the LoRA is not concerned. Let them "
            f"learn at {SAFE_LR:g} or more (Train Head, rate), load the model in float32, or leave Train Head off."
        )
