"""The base model's own layers under their own names, below PEFT's wrappers."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch.nn import Module

OF_PEFT = (BaseTunerLayer, AuxiliaryTrainingWrapper)


def own(layer: Any) -> Any:
    """The base layer below PEFT's wrappers; on experts PEFT nests them."""
    while isinstance(layer, OF_PEFT):
        layer = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer.original_module
    return layer


def own_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """Like named_modules, but without PEFT's wrappers: another thread may be training a LoRA in the model."""
    return _walk(model, "", set())


def _walk(module: Module, path: str, seen: set[Module]) -> Iterator[tuple[str, Module]]:
    for name, layer in module.named_children():
        if (base_layer := own(layer)) not in seen:
            seen.add(base_layer)
            yield f"{path}{name}", base_layer
            yield from _walk(base_layer, f"{path}{name}.", seen)
