"""The memory that a run is expected to take, from config.json, the settings and the lengths of the examples."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.host import Memory, ModelCard
from ..settings.declared import TrainingSettings
from ..train_utils import BITS_OF_WEIGHTS, Load, MemoryEstimate, ModelShape, memory_estimate
from .examples import Examples

PARTS: Mapping[str, tuple[str, ...]] = {
    "q-v": ("q", "v"),
    "q-k-v": ("q", "k", "v"),
    "q-k-v-o": ("q", "k", "v", "o"),
    "k-v-down": ("k", "v", "down"),
}
STATE_BYTES = (("paged", 0.0), ("8bit", 2.0), ("lion", 4.0), ("adafactor", 0.1), ("sgd", 0.0))
ADAM_BYTES = 8.0


def memory(
    settings: TrainingSettings, card: ModelCard, examples: Examples, machine: Memory | None
) -> MemoryEstimate | None:
    """None where the config does not say how large the model is."""
    shape = ModelShape.of(card.config)
    lengths, batch = examples.lengths(), settings.steps.batch_size
    if shape is None or not lengths:
        return None
    on_card = machine is not None and not machine.device.lower().startswith("cpu")
    longest = sorted(lengths)[-batch:]
    learned = sorted(examples.learned())[-batch:]
    asked = settings.machine.gradient_checkpointing
    load = Load(
        weights_as=weights_as(card, on_card=on_card),
        rank=settings.lora.rank,
        parts=parts(settings),
        tokens=batch * longest[-1],
        learned=sum(learned),
        checkpointing=asked == "on" or (asked == "auto" and on_card),
        dropout=settings.lora.dropout > 0,
        state_bytes=state_bytes(settings),
        train_head=settings.lora.train_head,
        graphics_card=on_card,
    )
    return memory_estimate(shape, load)


def weights_as(card: ModelCard, *, on_card: bool) -> str:
    """How the weights are held: as they were loaded, else in the model's own type (float32 on a CPU)."""
    if card.loading in BITS_OF_WEIGHTS:
        return card.loading
    if not on_card:
        return "float32"
    own: Any = card.config.get("dtype") or card.config.get("torch_dtype") or "bfloat16"
    named = str(own).removeprefix("torch.")
    return named if named in BITS_OF_WEIGHTS else "bfloat16"


def state_bytes(settings: TrainingSettings) -> float:
    """What the optimizer remembers of each trained weight."""
    return next((count for word, count in STATE_BYTES if word in settings.learning.optimizer), ADAM_BYTES)


def parts(settings: TrainingSettings) -> frozenset[str] | None:
    """The layers with a LoRA; None for all."""
    targets = settings.lora.targets
    return frozenset(PARTS[targets]) if isinstance(targets, str) and targets in PARTS else None
