"""LoRAs on a model: which layers, putting one in to train, putting one on and taking it off again."""

from __future__ import annotations

import copy
import json
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors.torch import save_file

from ..core.errors import ModelError, SavingError, SettingsError
from ..core.host import Host
from ..settings.declared import Lora
from .borrowing import borrowed

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
_CLASSIC: Mapping[str, tuple[str, ...]] = {"q-v": ("q_proj", "v_proj")}


def lora_config(lora: Lora, model: torch.nn.Module) -> LoraConfig:
    """PEFT's config for what the user asked for."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha if lora.alpha != int(lora.alpha) else int(lora.alpha),
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        target_modules=_targets(lora.targets, model),
        bias="none",
    )


def _targets(asked: str | tuple[str, ...], model: torch.nn.Module) -> str | list[str]:
    if asked == "all-linear":
        return "all-linear"
    wanted = _CLASSIC[asked] if isinstance(asked, str) else asked
    there = {name.rpartition(".")[2] for name, m in model.named_modules() if _is_linear(m)}
    whole = {name for name, _ in model.named_modules()}
    missing = [w for w in wanted if w not in there and w not in whole]
    if missing:
        raise SettingsError(
            [
                f"Which layers: this model has no layer called {', '.join(missing)}. It has "
                f"{', '.join(sorted(there))}. Choose all, or name some of these."
            ]
        )
    return list(wanted)


def _is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4bit", "Linear8bitLt")


@contextmanager
def injected(base: torch.nn.Module, config: LoraConfig) -> Iterator[PeftModel]:
    """A fresh LoRA in the model, to be trained; gone again afterwards, the base bit for bit as before."""
    try:
        model = get_peft_model(base, config)
    except ValueError as error:
        raise ModelError(f"No LoRA can be put into this model: {error}") from error
    try:
        yield model
    finally:
        bare(model)


def bare(model: PeftModel) -> torch.nn.Module:
    """The base model, every LoRA taken out of it."""
    base: torch.nn.Module = model.unload()
    return base


def write(model: PeftModel, folder: Path) -> None:
    """The LoRA as PEFT and the webui load it: two files, the same bytes for the same LoRA."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().to("cpu").contiguous() for k, v in get_peft_model_state_dict(model).items()}
    save_file(dict(sorted(state.items())), folder / WEIGHTS, metadata={"format": "pt"})
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    config.base_model_name_or_path = str(model.get_base_model().name_or_path)
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=_plain)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(getattr(value, "value", value))


def loaded_onto(base: torch.nn.Module, folder: Path, name: str, strength: float = 1.0) -> PeftModel:
    """The model with a LoRA from disk on it; the base's own flags stay as they are."""
    if not (folder / CONFIG).is_file():
        raise SavingError(f"{folder} holds no LoRA ({CONFIG} is missing). Choose another one.")
    with borrowed(base):
        try:
            model = PeftModel.from_pretrained(base, str(folder), adapter_name=name)
        except (ValueError, RuntimeError, KeyError, OSError) as error:
            _take_out_remains(base)
            reason = str(error).strip().splitlines()[0]
            raise SavingError(f"The LoRA {name!r} does not fit on this model: {reason}") from error
    _weigh(model, strength)
    model.eval()
    return model


def _take_out_remains(base: torch.nn.Module) -> None:
    """What a LoRA that did not fit has left in the model's layers."""
    from peft.tuners.tuners_utils import BaseTunerLayer

    for name, module in list(base.named_modules()):
        if isinstance(module, BaseTunerLayer):
            parent = base.get_submodule(name.rpartition(".")[0])
            setattr(parent, name.rpartition(".")[2], module.get_base_layer())


def _weigh(model: PeftModel, strength: float) -> None:
    for module in model.modules():
        if isinstance(scaling := getattr(module, "scaling", None), dict):
            for name in scaling:
                scaling[name] *= strength


def put_on(name: str, strength: float, host: Host) -> None:
    """Put a LoRA on the host's model, instead of whatever is on it."""
    folder = host.folders.loras / name
    if not (folder / CONFIG).is_file():
        raise SavingError(f"There is no LoRA {name!r} in {host.folders.loras}.")
    take_off(host)
    host.note_loras(loaded_onto(host.loaded().model, folder, name, strength), (name,))


def take_off(host: Host) -> tuple[str, ...]:
    """Take every LoRA off the host's model; the base is bit for bit what it was. Says which were on."""
    loaded = host.loaded()
    if isinstance(loaded.model, PeftModel):
        base = loaded.model.get_base_model()
        with borrowed(base):
            bare(loaded.model)
        forget_peft(base)
        host.note_loras(base, ())
    return loaded.loras


@contextmanager
def without_loras(host: Host) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """The host's model with nothing on it, and what was; back on afterwards, as it was."""
    loaded = host.loaded()
    if not isinstance(loaded.model, PeftModel):
        yield loaded.model, ()
        return
    kept = _Kept.of(loaded.model)
    take_off(host)
    base = host.loaded().model
    try:
        yield base, loaded.loras
    finally:
        with borrowed(base):
            model = kept.put_back(base)
        host.note_loras(model, loaded.loras)


def forget_peft(base: torch.nn.Module) -> None:
    for name in ("peft_config", "_hf_peft_config_loaded"):
        if name in vars(base):
            delattr(base, name)


@dataclass(frozen=True)
class _Kept:
    """The LoRAs that are on a model, so that they can be put back as they were."""

    configs: dict[str, Any]
    weights: dict[str, dict[str, torch.Tensor]]
    scaling: dict[str, dict[str, float]]
    active: Any

    @classmethod
    def of(cls, model: PeftModel) -> _Kept:
        names = list(model.peft_config)
        return cls(
            configs={n: copy.deepcopy(model.peft_config[n]) for n in names},
            weights={n: _copied(get_peft_model_state_dict(model, adapter_name=n)) for n in names},
            scaling={n: dict(m.scaling) for n, m in model.named_modules() if isinstance(_scaling(m), dict)},
            active=model.active_adapters if hasattr(model, "active_adapters") else [model.active_adapter],
        )

    def put_back(self, base: torch.nn.Module) -> PeftModel:
        first, *others = self.configs
        model = PeftModel(base, self.configs[first], adapter_name=first)
        for name in others:
            model.add_adapter(name, self.configs[name])
        for name, weights in self.weights.items():
            set_peft_model_state_dict(model, weights, adapter_name=name)
        for name, scaling in self.scaling.items():
            model.get_submodule(name).scaling.update(scaling)
        model.base_model.set_adapter(self.active)
        for name, parameter in model.named_parameters():
            if "lora_" in name:
                parameter.requires_grad_(False)
        return model.eval()


def _scaling(module: torch.nn.Module) -> object:
    return getattr(module, "scaling", None)


def _copied(state: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    return {k: v.detach().clone() for k, v in state.items()}
