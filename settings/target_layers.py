"""Which layers a Target modules setting chooses."""

from __future__ import annotations

from collections.abc import Mapping

from ..core.model_shape import OUTER_LAYERS

TARGET_CHOICES: Mapping[str, tuple[str, ...]] = {
    choice: tuple(choice.split("-")) for choice in ("q-v", "q-k-v", "q-k-v-o", "k-v-down")
}
LAYER_NAMES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})


def target_layers(targets: str | tuple[str, ...]) -> frozenset[str] | None:
    """Return the layers of a targets setting, None for all; a list with unknown names counts as all."""
    if isinstance(targets, str):
        return frozenset(TARGET_CHOICES[targets]) if targets in TARGET_CHOICES else None
    names = frozenset(name.rpartition(".")[2].removesuffix("_proj") for name in targets)
    return names if names <= LAYER_NAMES.union(OUTER_LAYERS) else None
