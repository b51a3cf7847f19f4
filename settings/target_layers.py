"""Which layers a Target modules setting chooses, and for which models the weights of a LoRA can be computed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ..core.model_shape import OUTER_LAYERS
from .definitions import SETTINGS

TARGET_CHOICES: Mapping[str, tuple[str, ...]] = {
    choice: tuple(choice.split("-")) for choice in ("q-v", "q-k-v", "q-k-v-o", "k-v-down")
}
LAYER_NAMES = frozenset({"q", "k", "v", "o", "gate", "up", "down"})
# Model types whose LoRA weights can be computed exactly from the config; others have to be counted. A test
# compares each of them with PEFT (tests/engine/lora/test_own_weights.py).
KNOWN_MODEL_TYPES = {
    *("cohere", "cohere2", "ernie4_5", "ernie4_5_moe", "exaone4", "exaone_moe", "flex_olmo", "gemma"),
    *("gemma2", "gemma3_text", "glm4_moe", "gpt_oss", "granite", "helium", "llama", "minimax_m2"),
    *("ministral3", "mistral", "mixtral", "olmo", "olmo2", "olmo3", "olmoe", "phi", "qwen2", "qwen3"),
    *("qwen3_moe", "seed_oss", "smollm3", "solar_open", "stablelm", "starcoder2"),
}


def target_layers(targets: str | tuple[str, ...]) -> frozenset[str] | None:
    """Return the layers of a targets setting, None for all; a list with unknown names counts as all."""
    if isinstance(targets, str):
        return frozenset(TARGET_CHOICES[targets]) if targets in TARGET_CHOICES else None
    names = frozenset(name.rpartition(".")[2].removesuffix("_proj") for name in targets)
    return names if names <= LAYER_NAMES.union(OUTER_LAYERS) else None


def is_known_architecture(config: Mapping[str, Any], targets: str | tuple[str, ...]) -> bool:
    """Whether the weights of a LoRA on these layers can be computed from the config."""
    text_config = config.get("text_config")
    model_type = (text_config if isinstance(text_config, Mapping) else config).get("model_type")
    if model_type not in KNOWN_MODEL_TYPES:
        return False
    # All targets are modules that every decoder layer has; a full path means only one module.
    if isinstance(targets, str):
        return targets == SETTINGS["targets"].default or targets in TARGET_CHOICES
    return {name.removesuffix("_proj") for name in targets} <= LAYER_NAMES.union(OUTER_LAYERS)
