"""LoRAs kept while the model leaves memory, and put back on it when it is loaded again."""

from __future__ import annotations

import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict

from ...core.host import Host
from .adapter import adapter_state
from .biases import bias_of, keep_biases
from .state_guards import preserve_model_state


@dataclass(frozen=True)
class AdapterSnapshot:
    """The LoRAs on a model, without any of its own weights."""

    names: tuple[str, ...] = ()
    adapters: tuple[_Adapter, ...] = ()
    active: tuple[str, ...] = ()
    strengths: Mapping[str, Mapping[str, float]] | None = None

    def attach_lora(self, host: Host) -> None:
        """Restore the same LoRAs with their strengths, without reading their folders."""
        if not self.adapters:
            return
        base = host.loaded_model().model
        with preserve_model_state(base), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT gave them when these LoRAs were first loaded
            host.set_loras(self._apply(base), self.names)

    def _apply(self, base: Any) -> PeftModel:
        first, *others = self.adapters
        keep_biases(base, bias_of(first.config))
        model = get_peft_model(base, first.config, adapter_name=first.name)
        for adapter in others:
            model.add_adapter(adapter.name, adapter.config)
        for adapter in self.adapters:
            set_peft_model_state_dict(model, dict(adapter.weights), adapter_name=adapter.name)
        for name, strengths in (self.strengths or {}).items():
            model.get_submodule(name).scaling.update(strengths)
        model.base_model.set_adapter(list(self.active))
        model.requires_grad_(False)
        return model.eval()


@dataclass(frozen=True)
class _Adapter:
    name: str
    config: PeftConfig
    weights: Mapping[str, torch.Tensor]

    @staticmethod
    def of(model: PeftModel, name: str) -> _Adapter:
        return _Adapter(name, model.peft_config[name], adapter_state(model, name))


def snapshot_adapters(host: Host) -> AdapterSnapshot:
    """Snapshot the LoRAs on the host's model; empty if no model is loaded."""
    if host.model_status().problem or not isinstance(model := host.loaded_model().model, PeftModel):
        return AdapterSnapshot()
    return AdapterSnapshot(
        names=host.loaded_model().loras,
        adapters=tuple(_Adapter.of(model, name) for name in model.peft_config),
        active=tuple(model.active_adapters),
        strengths={name: dict(layer.scaling) for name, layer in model.named_modules() if _has_scaling(layer)},
    )


def removed_message(names: Sequence[str]) -> str:
    """Message about LoRAs whose model is not loaded again."""
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{', '.join(names)} {verb} detached. Attach {pronoun} again after the model is loaded."


def _has_scaling(layer: Any) -> bool:
    return isinstance(getattr(layer, "scaling", None), dict)
