"""Steps that are too small for the type that weights are trained in: bfloat16 rounds them away."""

from __future__ import annotations

from collections.abc import Iterator

from ...core.host import Host
from ...settings.definitions import TrainingSettings
from .requirements import Here

SMALL = 1e-4
"""Below it a good part of what steps change was lost, measured: docs/engine.md."""


def advice(settings: TrainingSettings, host: Host) -> list[str]:
    """What Check says of a model as it is, or will be, held."""
    return list(rounding_advice(settings, Here.of(host).kind))


def rounding_advice(settings: TrainingSettings, kind: str) -> Iterator[str]:
    """Of weights of this type in training; a LoRA itself is always in float32."""
    rate = settings.learning.learning_rate * (settings.lora.head_rate if settings.lora.train_head else 1)
    if kind != "bfloat16" or rate >= SMALL:
        return
    why = (
        "the model is held in bfloat16, and a step that changes a weight by less than 1/256 is rounded away. At a "
        f"learning rate of {rate:g}"
    )
    if settings.lora.whole_model:
        yield f"Method full: {why} many of them are. Load the model in float32, or use {SMALL:g} or more."
    elif settings.lora.train_head:
        yield (
            f"Train Head: {why} many steps of embeddings and head are; the LoRA is not concerned. Let them learn "
            f"at {SMALL:g} or more (Train Head, rate), load the model in float32, or leave Train Head off."
        )
