"""Whether the layers that are asked for are there, before a model's weights are loaded: by its config alone."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ..core.errors import ModelError, SettingsError
from ..core.host import Host
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


def _layers(host: Host) -> Any:
    """The model in memory, or a skeleton of it; a LoRA that is on hides the names of the layers below it."""
    if not host.standing().problem and not (loaded := host.loaded()).loras:
        return loaded.model
    try:
        described = {**host.card().config}
        config = AutoConfig.for_model(described.pop("model_type"), **described)
        with torch.device("meta"):
            return AutoModelForCausalLM.from_config(config)
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # code of the model's own, or a config that says too little
