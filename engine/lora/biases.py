"""Biases that a LoRA trains: they are the base model's own, so its values are kept and put back."""

from __future__ import annotations

import warnings
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any, TypeAlias

import torch
from peft.tuners.lora import LoraLayer

from ...core.errors import ModelError
from ...core.findings import Finding, advice
from ...settings.definitions import LoraSettings
from .peft_private import BIAS_WARNING

# Attribute of a base model whose biases a LoRA has changed.
KEPT_BIASES = "_training_pro_biases"
# Biases of the base model, each with the values that it does not have at the moment.
Biases: TypeAlias = Sequence[tuple[torch.nn.Parameter, torch.Tensor]]


def keep_biases(base: Any, bias: str) -> None:
    """Keep the base model's own biases, before a LoRA with this `bias` changes them."""
    if bias != "none":
        vars(base)[KEPT_BIASES] = [(weight, weight.detach().clone()) for _, weight in named_biases(base)]


def named_biases(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if name.endswith(".bias"))


def is_in_saved_module(name: str) -> bool:
    """Whether a weight belongs to a module that is trained in full, or is its untrained original."""
    return ".original_module." in name or ".modules_to_save." in name


def swap_biases(biases: Biases) -> None:
    """Exchange the values in the model for those that are kept."""
    for weight, kept in biases:
        current = weight.detach().clone()
        weight.data.copy_(kept)
        kept.copy_(current)


def adapter_biases(model: Any, bias: str) -> dict[str, torch.Tensor]:
    """The biases that belong to a LoRA; PEFT's own saving leaves out those of `lora_only`."""
    if bias == "all":
        return {name: weight for name, weight in named_biases(model) if not is_in_saved_module(name)}
    found: dict[str, torch.Tensor] = {}
    for name, layer in model.named_modules():
        if bias == "lora_only" and isinstance(layer, LoraLayer):
            weight = getattr(layer.get_base_layer(), "bias", None)
            if weight is not None:
                found[f"{name}.base_layer.bias"] = weight
    return found


@contextmanager
def disable_lora(model: Any) -> Iterator[None]:
    """Let the model work without its LoRA in this context, and without the biases that it trained."""
    biases = vars(model.get_base_model()).get(KEPT_BIASES, ())
    with warnings.catch_warnings():
        warnings.filterwarnings("ignore", BIAS_WARNING)
        with model.disable_adapter():
            swap_biases(biases)
            try:
                yield
            finally:
                swap_biases(biases)


def refuse_lost_biases(base: Any) -> None:
    """Refuse a base model whose biases another program has overwritten with those of a LoRA."""
    trained = [name for name, config in getattr(base, "peft_config", {}).items() if bias_of(config) != "none"]
    if trained and KEPT_BIASES not in vars(base):
        raise ModelError(
            f"The LoRA {trained[0]!r} was attached outside Training PRO and has replaced some of the model's "
            "biases. Load the model again, and use Training PRO to attach LoRAs with trained biases."
        )


def bias_of(config: Any) -> str:
    """The `bias` of a PEFT config; not every kind of adapter has it."""
    return getattr(config, "bias", None) or "none"


def unused_bias_advice(lora: LoraSettings, model: Any, names: Sequence[str]) -> Iterator[Finding]:
    """Say where `bias` has nothing to train, as in a Llama; `names` are the layers with a LoRA."""
    layers = {f"{name}.bias" for name in names} | {f"{name}.base_layer.bias" for name in names}
    biases = {name for name, _ in named_biases(model)}
    if lora.bias != "none" and not (biases if lora.bias == "all" else biases & layers):
        where = "this model has" if lora.bias == "all" else "the layers with a LoRA have"
        yield advice(
            "bias", f"Bias {lora.bias}: {where} no biases, so this setting has no effect. Set Bias to none."
        )
