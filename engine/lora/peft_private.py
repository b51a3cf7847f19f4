"""What we use of PEFT and transformers that is not in their documentation, in one place.

Checked with PEFT 0.18.1 and 0.21.2, and transformers 5.6.2 and 5.23.0.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from peft import LoraConfig, LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer
from peft.utils.other import AuxiliaryTrainingWrapper

# A layer with a LoRA, and one that is trained in full as a copy (`modules_to_save`).
PEFT_LAYER_TYPES = (BaseTunerLayer, AuxiliaryTrainingWrapper)
# Attributes of a base model on which a LoRA is.
PEFT_ATTRIBUTES = ("peft_config", "_hf_peft_config_loaded")
# Attributes that PEFT, the Trainer and gradient checkpointing leave on a model.
LEFTOVER_ATTRIBUTES = (*PEFT_ATTRIBUTES, "warnings_issued", "_require_grads_hook", "_require_grads_hooks")
TIED_WARNING = "Model (has|with) `tie_word_embeddings=True`"
BIAS_WARNING = "Careful, disabling adapter layers with bias"


def unwrap_layer(layer: Any) -> Any:
    """The base layer below PEFT's wrappers; on experts PEFT nests them."""
    while isinstance(layer, PEFT_LAYER_TYPES):
        layer = layer.get_base_layer() if isinstance(layer, BaseTunerLayer) else layer.original_module
    return layer


def named_base_modules(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Module]]:
    """Like named_modules, but without PEFT's wrappers: another thread may be training a LoRA in the model."""
    seen: set[torch.nn.Module] = set()

    def walk(module: torch.nn.Module, path: str) -> Iterator[tuple[str, torch.nn.Module]]:
        for name, layer in module.named_children():
            base_layer = unwrap_layer(layer)
            if base_layer not in seen:
                seen.add(base_layer)
                yield f"{path}{name}", base_layer
                yield from walk(base_layer, f"{path}{name}.")

    return walk(model, "")


def adapted_layers(model: torch.nn.Module) -> tuple[str, ...]:
    """Names of the layers that carry a LoRA; PEFT replaces some layers by tensors of experts."""
    names: list[str] = []
    for name, layer in model.named_modules():
        if isinstance(layer, BaseTunerLayer):
            base_name = name.replace(".base_layer", "").removeprefix("base_model.model.")
            tensor = getattr(layer, "parameter_name", None)
            names.append(f"{base_name}.{tensor}" if tensor else base_name)
    return tuple(names)


def peft_allows(name: str, model: Any) -> bool:
    """PEFT refuses some layers of Mamba, whose kernels read the weights without going through the wrapper."""
    check = getattr(LoraModel, "_check_target_module_compatiblity", None)  # spelled so in PEFT
    try:
        if check is not None:
            check(None, LoraConfig(), model, name.rpartition(".")[2])
    except ValueError:
        return False
    return True


def tie_weights(model: Any) -> None:
    """Share the trained copies of head and embeddings where the base model ties them."""
    base = model.get_base_model()
    first, second = base.get_input_embeddings(), base.get_output_embeddings()
    if not isinstance(first, AuxiliaryTrainingWrapper) or not isinstance(second, AuxiliaryTrainingWrapper):
        return
    if first.original_module.weight is second.original_module.weight:
        for name in second.modules_to_save:
            second.modules_to_save[name].weight = first.modules_to_save[name].weight
