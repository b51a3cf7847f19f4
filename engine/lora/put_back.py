"""Weights put back on a model: those of a finished LoRA that a run starts from, and LoRAs kept in memory."""

from __future__ import annotations

import json
import warnings
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from pickle import UnpicklingError
from typing import Any

import torch
from peft import PeftConfig, PeftModel, get_peft_model, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file

from ...core.errors import SavingError, SettingsError, first_line
from ...core.files import read_small_file
from ...core.host import Host
from ...settings.definitions import LoraSettings
from .adapter import CONFIG, WEIGHTS, adapter_state
from .biases import bias_of, keep_biases
from .state_guards import preserve_model_state


def refuse_shape_mismatch(lora: LoraSettings, folder: Path) -> None:
    """SettingsError with all differences between the LoRA and the settings, before anything is loaded."""
    try:
        config = json.loads(read_small_file(folder / CONFIG))
    except (OSError, ValueError) as error:
        raise SavingError(
            f"{folder / CONFIG} can't be read: {error}. The LoRA can't be trained further. Choose another LoRA."
        ) from error
    config = config if isinstance(config, dict) else {}
    # What decides which tensors a LoRA has and by how much they count; other settings may change.
    fields = (
        ("LoRA Rank", config.get("r"), lora.rank),
        ("LoRA Alpha", config.get("lora_alpha"), lora.effective_alpha),
        ("DoRA", bool(config.get("use_dora")), lora.dora),
        ("rsLoRA", bool(config.get("use_rslora")), lora.rslora),
        ("Bias", config.get("bias", "none"), lora.bias),
        (
            "Modules to save" if lora.saved_modules else "Train Head",
            bool(config.get("modules_to_save")),
            lora.train_head or bool(lora.saved_modules),
        ),
    )
    problems = [
        f"{label} is {_as_text(trained)} in the LoRA {folder.name!r}, but {_as_text(requested)} in the settings. "
        f"To continue training this LoRA, set {label} to {_as_text(trained)}."
        for label, trained, requested in fields
        if trained is not None and trained != requested
    ]
    if problems:
        raise SettingsError(problems)


def read_weights(folder: Path) -> dict[str, torch.Tensor]:
    """The weights of a LoRA on disk; SavingError if they can't be read."""
    try:
        if (folder / WEIGHTS).is_file():
            return dict(load_file(folder / WEIGHTS))
        # Of an old PEFT; as weights only, so that no code in it runs.
        return dict(torch.load(folder / "adapter_model.bin", map_location="cpu", weights_only=True))
    except (OSError, SafetensorError, RuntimeError, ValueError, EOFError, UnpicklingError) as error:
        raise SavingError(f"The weights in {folder} can't be read: {error}. Choose another LoRA.") from error


def load_initial_weights(model: PeftModel, folder: Path) -> None:
    """Load the weights of a LoRA on disk into the new one; SavingError unless all of them match."""
    # PEFT loads what fits and reports the rest, so that a LoRA of other layers would be half loaded.
    state = read_weights(folder)
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
    reason = ""
    try:
        result = set_peft_model_state_dict(model, state)
        odd = {*(trainable & set(result.missing_keys)), *result.unexpected_keys}
        if odd:
            layers = sorted({name.split(".lora_")[0].rpartition(".")[2] for name in odd})
            reason = f"its layers differ from those of this run ({', '.join(layers[:8])})"
    except (RuntimeError, KeyError, ValueError) as error:
        reason = first_line(error)
    if reason:
        raise SavingError(
            f"The LoRA {folder.name!r} can't be trained further with these settings: {reason}. Set Target "
            "modules to the layers that it was trained on, and choose the model that it was made for."
        )


def _as_text(value: object) -> str:
    if isinstance(value, bool):
        return "on" if value else "off"
    return f"{value:g}" if isinstance(value, (int, float)) else str(value)


@dataclass(frozen=True)
class _Adapter:
    name: str
    config: PeftConfig
    weights: Mapping[str, torch.Tensor]


@dataclass(frozen=True)
class AdapterSnapshot:
    """The LoRAs on a model, without any of its own weights, while it leaves memory."""

    names: tuple[str, ...] = ()
    adapters: tuple[_Adapter, ...] = ()
    active: tuple[str, ...] = ()
    strengths: Mapping[str, Mapping[str, float]] | None = None

    def attach_lora(self, host: Host) -> None:
        """Restore the same LoRAs with their strengths, without reading their folders, which may have changed."""
        if not self.adapters:
            return
        base: Any = host.loaded_model().model
        first, *others = self.adapters
        with preserve_model_state(base), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT gave them when these LoRAs were first loaded
            keep_biases(base, bias_of(first.config))
            model = get_peft_model(base, first.config, adapter_name=first.name)
            for adapter in others:
                model.add_adapter(adapter.name, adapter.config)
            for adapter in self.adapters:
                set_peft_model_state_dict(model, dict(adapter.weights), adapter_name=adapter.name)
            for name, strengths in (self.strengths or {}).items():
                model.get_submodule(name).scaling.update(strengths)
            model.base_model.set_adapter(list(self.active))
            # PEFT makes a new LoRA trainable; this one is only used.
            model.requires_grad_(False)
            host.set_loras(model.eval(), self.names)


def snapshot_adapters(host: Host) -> AdapterSnapshot:
    """Snapshot the LoRAs on the host's model; empty if no model is loaded."""
    if host.model_status().problem or not isinstance(model := host.loaded_model().model, PeftModel):
        return AdapterSnapshot()
    scalings = {name: getattr(layer, "scaling", None) for name, layer in model.named_modules()}
    return AdapterSnapshot(
        names=host.loaded_model().loras,
        adapters=tuple(
            _Adapter(name, config, adapter_state(model, name)) for name, config in model.peft_config.items()
        ),
        active=tuple(model.active_adapters),
        strengths={name: dict(scaling) for name, scaling in scalings.items() if isinstance(scaling, dict)},
    )


def removed_message(names: Sequence[str]) -> str:
    """Message about LoRAs whose model is not loaded again."""
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{', '.join(names)} {verb} detached. Attach {pronoun} again after the model is loaded."
