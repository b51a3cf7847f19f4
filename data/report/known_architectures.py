"""The kinds of models whose layers arithmetic knows, to the last weight of a LoRA; others have to be counted."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from .memory_estimate import NAMED, PARTS

ALL = "all-linear"
KNOWN = frozenset(
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


def is_known(config: Mapping[str, Any], targets: str | tuple[str, ...]) -> bool:
    """Whether the weights of a LoRA on these layers follow from the config."""
    text = config.get("text_config")
    kind = (text if isinstance(text, Mapping) else config).get("model_type")
    return kind in KNOWN and _are_usual(targets)


def _are_usual(targets: str | tuple[str, ...]) -> bool:
    """Layers by names that each layer of the model has; a whole name means one layer alone."""
    if isinstance(targets, str):
        return targets == ALL or targets in PARTS
    return {name.removesuffix("_proj") for name in targets} <= NAMED
