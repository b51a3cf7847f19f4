"""A model by its config alone, before its weights are loaded: can the LoRA sit on it that is asked for?"""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

import torch
from transformers import AutoConfig, AutoModelForCausalLM

from ...core.errors import ModelError, SettingsError
from ...core.host import Host, ModelCard, bare
from ...settings.definitions import Lora
from ...train_utils import Counted, ModelShape
from .adapter import injected, lora_config
from .targets import is_linear, refuse_if_elsewhere, resolved


def lora_problems(lora: Lora, host: Host) -> Iterator[str]:
    """Layers that the model does not have, and what PEFT cannot do on its experts; none where that is only known
    when it is loaded."""
    model = _layers(host)
    if model is None:
        return
    try:
        resolved(lora.targets, model)
        if _has_experts(model):
            _put_on_trial(lora, host)
    except SettingsError as error:
        yield from error.problems
    except ModelError as error:
        yield str(error)


def _has_experts(model: Any) -> bool:
    shape = ModelShape.of(model.config.to_dict())
    return shape is not None and shape.experts is not None


def skeleton(card: ModelCard) -> Any:
    """The model without any weights."""
    described = {**card.config}
    config = AutoConfig.for_model(described.pop("model_type"), **described)
    with torch.device("meta"):
        return AutoModelForCausalLM.from_config(config)


def _layers(host: Host) -> Any:
    """The model in memory, whatever LoRA is in it, or a skeleton of it."""
    return _skeleton(host) if host.standing().problem else bare(host.loaded().model)


def _skeleton(host: Host) -> Any:
    try:
        return skeleton(host.card())
    except (ModelError, KeyError, ValueError, TypeError, AttributeError, ImportError, RuntimeError):
        return None  # code of the model's own, or a config that says too little


def _put_on_trial(lora: Lora, host: Host) -> None:
    """Never on the model in memory: another may be using that."""
    base = _skeleton(host)
    if base is None:
        return
    with _sitting(lora, base):
        pass


@contextmanager
def _sitting(lora: Lora, base: Any) -> Iterator[Any]:
    """The very LoRA, of tensors without numbers."""
    targets = resolved(lora.targets, base)
    config = lora_config(lora, base, targets)
    with warnings.catch_warnings(), torch.device("meta"):
        warnings.simplefilter("ignore")  # of PEFT; the run's log has them
        with injected(base, config) as model:
            refuse_if_elsewhere(targets, model)
            yield model


def weights(lora: Lora, card: ModelCard) -> Counted | None:
    """Counted on a skeleton; None where none can be made of it, or the LoRA cannot sit there."""
    try:
        return _counted(replace(lora, rank=1, dropout=0.0, dora=False, train_head=False), skeleton(card))
    except Exception:  # noqa: BLE001 - the code of hundreds of architectures; Check can do without
        return None


def _counted(lora: Lora, base: Any) -> Counted:
    head = base.get_output_embeddings()
    linear = sum(m.weight.numel() for m in base.modules() if is_linear(m) and m is not head)
    everything = sum(own.numel() for own in base.parameters())
    if lora.method == "full":
        return Counted(linear, everything - linear, 0)
    with _sitting(lora, base) as model:
        trained = sum(own.numel() for own in model.parameters() if own.requires_grad)
    return Counted(linear, everything - linear, trained)
