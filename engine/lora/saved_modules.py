"""Modules that are trained in full beside a LoRA, and saved with it: `modules_to_save` in PEFT."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

from ...core.errors import SettingsError
from ...core.model_shape import OUTER_LAYERS
from ...settings.definitions import LoraSettings
from .targets import is_quantized, matches_any, named_base_modules, outer_layers, unwrap_layer


def resolve_saved_modules(lora: LoraSettings, model: Any, targets: Sequence[str]) -> list[str]:
    """Full names of the modules; SettingsError for those that the model lacks or that can't be trained."""
    modules, outer = dict(named_base_modules(model)), outer_layers(model)
    head = head_and_embeddings(model) if lora.train_head else []
    saved = dict.fromkeys(head)
    for requested in lora.saved_modules:
        found = [name for name in modules if matches_any(name, (requested, *outer.get(requested, ())))]
        if not found:
            raise SettingsError(
                [f"Modules to save: this model has no module called {requested}. {_example(modules)}"]
            )
        saved |= dict.fromkeys(found)
    if problems := [problem for name in saved for problem in _problems(name, modules[name], targets, saved)]:
        label = (
            "Target modules: Train Head trains"
            if set(saved) <= set(head)
            else "Modules to save: this setting trains"
        )
        raise SettingsError([f"{label} {problems[0]}"])
    return list(saved)


def head_and_embeddings(model: Any) -> list[str]:
    layers = [unwrap_layer(layer) for layer in (model.get_input_embeddings(), model.get_output_embeddings())]
    return [name for name, module in named_base_modules(model) if any(module is layer for layer in layers)]


def _problems(name: str, module: Any, targets: Sequence[str], saved: Collection[str]) -> Iterator[str]:
    """Why a module can't be trained in full."""
    inner = [target for target in targets if target == name or target.startswith(f"{name}.")]
    if inner:
        other = "it also" if inner[0] == name else inner[0]
        yield f"{name} in full, but {other} gets a LoRA. For each layer, choose either full training or a LoRA."
    elif any(other != name and other.startswith(f"{name}.") for other in saved):
        yield f"{name} in full, including the modules inside it. Remove those modules from the setting."
    elif not any(True for _ in module.parameters()):
        yield f"{name}, which has no weights. Choose another module."
    elif any(is_quantized(layer) for layer in module.modules()):
        yield f"{name} in full, but it is quantized. Load the model in 16 or 32 bits, or choose another module."


def _example(modules: Mapping[str, Any]) -> str:
    """Name the modules that have weights of their own."""
    names = {name.rpartition(".")[2] for name, module in modules.items() if list(module.parameters(recurse=False))}
    return f"Its modules are {', '.join([*OUTER_LAYERS, *sorted(names.difference(OUTER_LAYERS))])}."
