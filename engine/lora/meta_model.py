"""Build a model on the meta device from its config, to check target layers and count parameters."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ...core.errors import ModelError, SettingsError
from ...core.findings import Finding, problem
from ...core.host import Host, ModelCard, unwrap_peft
from ...core.model_shape import ModelShape, ParamCounts
from ...settings.definitions import SETTINGS, LoraSettings
from .adapter import inject_lora, lora_config
from .biases import unused_bias_advice
from .saved_modules import head_and_embeddings
from .targets import choose_targets, is_linear, refuse_misplaced_targets


def lora_problems(lora: LoraSettings, host: Host) -> Iterator[Finding]:
    """Problems with the target layers, and settings that PEFT does not support on experts.

    Empty if that can only be known after the model is loaded.
    """
    model = _base_model(host)
    if model is None:
        return
    try:
        targets = choose_targets(lora, model)
        lora_config(lora, model, targets)
        yield from unused_bias_advice(lora, model, targets.names)
        if _has_experts(model):
            _try_injection(lora, host)
    except SettingsError as error:
        yield from (problem(_key_of(sentence), sentence) for sentence in error.problems)
    except ModelError as error:
        yield problem("targets", str(error))


def _key_of(sentence: str) -> str:
    """The setting that a sentence begins with."""
    keys = ("modules_to_save", "layers_to_transform")
    return next((key for key in keys if sentence.startswith(SETTINGS[key].label)), "targets")


def _has_experts(model: Any) -> bool:
    shape = ModelShape.of(model.config.to_dict())
    return shape is not None and shape.experts is not None


def build_meta_model(card: ModelCard) -> Any:
    """Build the model on the meta device, without weights."""
    values = {**card.config}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _base_model(host: Host) -> Any:
    """The loaded model without its LoRAs, else the model on the meta device."""
    return _meta_model_or_none(host) if host.model_status().problem else unwrap_peft(host.loaded_model().model)


def _meta_model_or_none(host: Host) -> Any:
    try:
        return build_meta_model(host.card())
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # custom model code, or an incomplete config


def _try_injection(lora: LoraSettings, host: Host) -> None:
    """Inject the LoRA on the meta device; the loaded model may be in use by another thread."""
    base = _meta_model_or_none(host)
    if base is None:
        return
    with _injected_on_meta(lora, base):
        pass


@contextmanager
def _injected_on_meta(lora: LoraSettings, base: Any) -> Iterator[Any]:
    """Inject the LoRA on the meta device."""
    targets = choose_targets(lora, base)
    config = lora_config(lora, base, targets)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # PEFT repeats them in the run, where they are logged
        with inject_lora(base, config) as model:
            refuse_misplaced_targets(targets, model)
            yield model


def count_weights(lora: LoraSettings, card: ModelCard) -> ParamCounts | None:
    """Count parameters on the meta device; None if the model cannot be built or the LoRA does not fit."""
    try:
        return _count(replace(lora, rank=1, dropout=0.0, dora=False), build_meta_model(card))
    except Exception:  # noqa: BLE001 - any of hundreds of architectures may raise anything; Check works without the count
        return None


def _count(lora: LoraSettings, base: Any) -> ParamCounts:
    head = base.get_output_embeddings()
    linear = sum(module.weight.numel() for module in base.modules() if is_linear(module) and module is not head)
    total = sum(parameter.numel() for parameter in base.parameters())
    if lora.method == "full":
        return ParamCounts(linear, total - linear, 0)
    apart = [f".{name}." for name in head_and_embeddings(base)] if lora.train_head else []
    with _injected_on_meta(lora, base) as model:
        trained = [(name, weight.numel()) for name, weight in model.named_parameters() if weight.requires_grad]
    loras = sum(count for name, count in trained if "lora_" in name)
    full = sum(count for name, count in trained if "lora_" not in name and not any(part in name for part in apart))
    return ParamCounts(linear, total - linear, loras, full)
