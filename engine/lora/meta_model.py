"""A model without weights, on torch's meta device: it checks target layers, and counts what config.json hides."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ...core.errors import ModelError, SettingsError
from ...core.findings import Finding, problem
from ...core.host import Host, ModelCard, unwrap_peft
from ...core.model_shape import ParamCounts
from ...settings.definitions import SETTINGS, LoraSettings, TrainingSettings
from .adapter import inject_lora, lora_config, unused_bias_advice
from .targets import choose_targets, has_experts, is_linear, outer_layers


def build_meta_model(card: ModelCard) -> Any:
    """Build the model on the meta device, without weights."""
    values = {**card.config}
    config = AutoConfig.for_model(values.pop("model_type"), **values)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def lora_problems(lora: LoraSettings, host: Host) -> Iterator[Finding]:
    """Problems with the target layers and of LoRAs on experts; empty if only the loaded model shows them."""
    is_loaded = not host.model_status().problem
    model = unwrap_peft(host.loaded_model().model) if is_loaded else _meta_model_or_none(host)
    if model is None:
        return
    try:
        targets = choose_targets(lora, model)
        lora_config(lora, model, targets)
        yield from unused_bias_advice(lora, model, targets.names)
        # The loaded model may be in use by another thread, so that the LoRA is tried on one without weights.
        base = _meta_model_or_none(host) if has_experts(model) else None
        with _injected_on_meta(lora, base) if base is not None else nullcontext():
            pass
    except SettingsError as error:
        for sentence in error.problems:
            keys = ("modules_to_save", "layers_to_transform")
            named = (key for key in keys if sentence.startswith(SETTINGS[key].label))
            yield problem(next(named, "targets"), sentence)
    except ModelError as error:
        yield problem("targets", str(error))


def _meta_model_or_none(host: Host) -> Any:
    try:
        return build_meta_model(host.card())
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # custom model code, or an incomplete config


@contextmanager
def _injected_on_meta(lora: LoraSettings, base: Any) -> Iterator[Any]:
    """Inject the LoRA on the meta device."""
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # PEFT repeats them in the run, where they are logged
        with inject_lora(base, lora) as (model, _):
            yield model


def add_param_count(card: ModelCard, settings: TrainingSettings) -> ModelCard:
    """Add the exact counts to the card; unchanged if the model cannot be built."""
    lora = settings.lora
    try:
        base = build_meta_model(card)
        # The head is not quantized, so that it counts to the other weights.
        head = base.get_output_embeddings()
        linear = sum(
            module.weight.numel() for module in base.modules() if is_linear(module) and module is not head
        )
        other = sum(parameter.numel() for parameter in base.parameters()) - linear
        if lora.method == "full":
            return replace(card, param_counts=ParamCounts(linear, other, 0))
        outer = outer_layers(base).values() if lora.train_head else ()
        apart = [f".{name}." for found in outer for name in found]
        # Of rank 1: the weights of any other rank are a multiple. Experts take neither dropout nor DoRA.
        with _injected_on_meta(replace(lora, rank=1, dropout=0.0, dora=False), base) as model:
            trained = [(name, weight.numel()) for name, weight in model.named_parameters() if weight.requires_grad]
            on_experts = bool(getattr(model.active_peft_config, "target_parameters", None))
        full = sum(n for name, n in trained if "lora_" not in name and not any(part in name for part in apart))
        loras = sum(count for name, count in trained if "lora_" in name)
        return replace(card, param_counts=ParamCounts(linear, other, loras, full, on_experts))
    except Exception:  # noqa: BLE001 - any of hundreds of architectures may raise anything; Check works without the count
        return card
