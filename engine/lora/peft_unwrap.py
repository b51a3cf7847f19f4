"""The model's own layers by their own names, below what PEFT has put around some of them."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper
from torch.nn import Module

OF_PEFT = (BaseTunerLayer, AuxiliaryTrainingWrapper)


def own(layer: Any) -> Any:
    """What stands there without PEFT: it puts one around another on experts."""
    while isinstance(layer, OF_PEFT):
        layer = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer.original_module
    return layer


def own_modules(model: Module) -> Iterator[tuple[str, Module]]:
    """As named_modules, also while a LoRA is in the model: another thread may be training it."""
    return _below(model, "", set())


def _below(module: Module, path: str, seen: set[Module]) -> Iterator[tuple[str, Module]]:
    for name, layer in module.named_children():
        if (part := own(layer)) not in seen:
            seen.add(part)
            yield f"{path}{name}", part
            yield from _below(part, f"{path}{name}.", seen)
