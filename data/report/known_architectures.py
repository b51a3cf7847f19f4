"""Model types whose LoRA weights can be computed exactly from the config; others have to be counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .memory_estimate import LAYER_NAMES, TARGET_CHOICES

ALL_LINEAR = "all-linear"
KNOWN_MODEL_TYPES = frozenset(
    {
        "cohere",
        "cohere2",
        "ernie4_5",
        "ernie4_5_moe",
        "exaone4",
        "exaone_moe",
        "flex_olmo",
        "gemma",
        "gemma2",
        "gemma3_text",
        "glm4_moe",
        "gpt_oss",
        "granite",
        "helium",
        "llama",
        "minimax_m2",
        "ministral3",
        "mistral",
        "mixtral",
        "olmo",
        "olmo2",
        "olmo3",
        "olmoe",
        "phi",
        "qwen2",
        "qwen3",
        "qwen3_moe",
        "seed_oss",
        "smollm3",
        "solar_open",
        "stablelm",
        "starcoder2",
    }
)


def is_known_architecture(config: Mapping[str, Any], targets: str | tuple[str, ...]) -> bool:
    """Whether the weights of a LoRA on these layers can be computed from the config."""
    text_config = config.get("text_config")
    model_type = (text_config if isinstance(text_config, Mapping) else config).get("model_type")
    return model_type in KNOWN_MODEL_TYPES and _are_usual_layers(targets)


def _are_usual_layers(targets: str | tuple[str, ...]) -> bool:
    """Whether all targets are modules that every decoder layer has; a full path means only one module."""
    if isinstance(targets, str):
        return targets == ALL_LINEAR or targets in TARGET_CHOICES
    return {name.removesuffix("_proj") for name in targets} <= LAYER_NAMES
