"""A model's layers by its config alone, before its weights are loaded: are those there that are asked for?"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..core.errors import ModelError, SettingsError
from ..core.host import Host, ModelCard
from .targets import resolved


def target_problems(asked: str | tuple[str, ...], host: Host) -> Iterator[str]:
    """Names that the model has no layer for; none where that is only known when it is loaded."""
    model = _layers(host)
    if model is None:
        return
    try:
        resolved(asked, model)
    except SettingsError as error:
        yield from error.problems


def skeleton(card: ModelCard) -> Any:
    """The model without any weights."""
    described = {**card.config}
    config = AutoConfig.for_model(described.pop("model_type"), **described)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _layers(host: Host) -> Any:
    """The model in memory, or a skeleton of it; a LoRA that is on hides the names of the layers below it."""
    if not host.standing().problem and not (loaded := host.loaded()).loras:
        return loaded.model
    try:
        return skeleton(host.card())
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # code of the model's own, or a config that says too little
