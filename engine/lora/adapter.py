"""LoRAs on a model: which layers, putting one in to train, putting one on and taking it off again."""

from __future__ import annotations

import copy
import json
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError
from safetensors.torch import save_file

from ...core.errors import ModelError, SavingError, SettingsError
from ...core.host import Host, bare
from ...records.folder import loras
from ...settings.definitions import Lora
from .lora_load_errors import why
from .peft_unwrap import OF_PEFT, own
from .state_guards import borrowed
from .targets import ALL, Targets, is_transposed, linear_layers, sees_or_hears

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"


def lora_config(lora: Lora, model: Any, targets: Targets) -> LoraConfig:
    """PEFT's config for what the user asked for."""
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=lora.alpha if lora.alpha != int(lora.alpha) else int(lora.alpha),
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=ALL if lora.targets == ALL and not sees_or_hears(model) else list(targets.names),
        exclude_modules=list(targets.left_out) or None,
        modules_to_save=_head_and_embeddings(model) if lora.train_head else None,
        fan_in_fan_out=any(is_transposed(m) for n, m in linear_layers(model) if n in targets.names),
        bias="none",
    )


def _head_and_embeddings(model: Any) -> list[str]:
    wanted = [model.get_input_embeddings(), model.get_output_embeddings()]
    return [name for name, module in model.named_modules() if any(module is w for w in wanted)]


@contextmanager
def injected(base: torch.nn.Module, config: LoraConfig) -> Iterator[PeftModel]:
    """A fresh LoRA in the model, to be trained; gone again afterwards, the base bit for bit as before."""
    try:
        yield _fresh(base, config)
    finally:
        take_out(base)


def _fresh(base: torch.nn.Module, config: LoraConfig) -> PeftModel:
    try:
        model = get_peft_model(base, config)
    except ValueError as error:
        if problems := list(_with_experts(config)):
            raise SettingsError(problems) from error
        other = "Choose other layers, such as q-k-v-o."
        raise ModelError(f"No LoRA can be put into this model: {error} {other}") from error
    tie(model)
    return model


def _with_experts(config: LoraConfig) -> Iterator[str]:
    """What PEFT cannot do on experts; on which it would have, it has written into the config by now."""
    if not getattr(config, "target_parameters", None):
        return
    end = "on this model's experts, which lie in one tensor. {}, or choose layers without them (q-k-v-o)."
    if config.lora_dropout:
        yield f"Dropout: {config.lora_dropout:g} cannot be done {end.format('Set it to 0')}"
    if config.use_dora:
        yield f"DoRA: it cannot be done {end.format('Leave it off')}"


def tie(model: PeftModel) -> None:
    """A head and embeddings that are one tensor in the base are one in what is trained of them."""
    base = model.get_base_model()
    parts = (base.get_input_embeddings(), base.get_output_embeddings())
    if not all(isinstance(part, AuxiliaryTrainingWrapper) for part in parts):
        return
    first, second = parts
    if first.original_module.weight is second.original_module.weight:
        for name in second.modules_to_save:
            second.modules_to_save[name].weight = first.modules_to_save[name].weight


def write(model: PeftModel, folder: Path) -> None:
    """The LoRA as PEFT and the webui load it: two files, the same bytes for the same LoRA."""
    folder.mkdir(parents=True, exist_ok=True)
    state = {k: v.detach().to("cpu", copy=True).contiguous() for k, v in get_peft_model_state_dict(model).items()}
    with weights_written():
        save_file(dict(sorted(state.items())), folder / WEIGHTS, metadata={"format": "pt"})
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    config.base_model_name_or_path = str(model.get_base_model().name_or_path)
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=_plain)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def _plain(value: object) -> object:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(getattr(value, "value", value))


def lora_folder(lora: str | Path, host: Host) -> Path:
    """The folder of a LoRA: by its name, or NAME/checkpoint-40, or the path that a command was given."""
    return lora if isinstance(lora, Path) else loras.named(lora, host.folders.loras)


def loaded_onto(
    base: torch.nn.Module, folder: Path, name: str, strength: float = 1.0, *, called: str = ""
) -> PeftModel:
    """The model with a LoRA from disk on it; the base's own flags and modes stay as they are.

    `called` is what the user calls it, where that is not the name.
    """
    if not (folder / CONFIG).is_file():
        raise SavingError(f"{folder} holds no LoRA ({CONFIG} is missing). Choose another one.")
    with borrowed(base), ExitStack() as undoing:
        undoing.callback(take_out, base)
        try:
            model = PeftModel.from_pretrained(base, str(folder), adapter_name=_to_peft(name))
        except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            reason = why(error, folder, base)
            raise SavingError(f"The LoRA {(called or name)!r} does not fit on this model: {reason}") from error
        undoing.pop_all()
    _weigh(model, strength)
    return model


def _to_peft(name: str) -> str:
    """To PEFT it is a module's name: no dot may stand in it, nor may it be a word of torch's, such as 'half'."""
    free = name.replace(".", "_")
    return f"{free}_" if hasattr(torch.nn.ModuleDict, free) else free


def _weigh(model: PeftModel, strength: float) -> None:
    for module in model.modules():
        if isinstance(scaling := getattr(module, "scaling", None), dict):
            for name in scaling:
                scaling[name] *= strength


def put_on(name: str, strength: float, host: Host) -> None:
    """Put a LoRA, or a checkpoint of one, on the host's model; where it fails, what is on it stays."""
    folder, loaded = lora_folder(name, host), host.loaded()
    name = folder.relative_to(host.folders.loras).as_posix()
    base = bare(loaded.model)
    try:
        with ExitStack() as undoing:
            undoing.callback(take_out(base))
            model = loaded_onto(base, folder, name, strength)
            undoing.pop_all()
    except SavingError as error:
        stays = f" {', '.join(loaded.loras)} stays on." if loaded.loras else ""
        raise SavingError(f"{error}{stays}") from error
    host.note_loras(model, (name,))


def take_off(host: Host) -> tuple[str, ...]:
    """Take every LoRA off the host's model; the base is bit for bit what it was. Says which were on."""
    loaded = host.loaded()
    if isinstance(loaded.model, PeftModel):
        base = bare(loaded.model)
        take_out(base)
        host.note_loras(base, ())
    return loaded.loras


@contextmanager
def without_loras(host: Host) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """The host's model on loan, with nothing on it, and what was; back on afterwards, the very same."""
    loaded = host.loaded()
    on, base = isinstance(loaded.model, PeftModel), bare(loaded.model)
    with borrowed(base):
        put_back = take_out(base)
        if on:
            host.note_loras(base, ())
        try:
            yield base, loaded.loras
        finally:
            put_back()
            if on:
                host.note_loras(loaded.model, loaded.loras)


class _Place(NamedTuple):
    """Where a layer of PEFT's stands in a model, around the model's own."""

    parent: torch.nn.Module
    name: str
    layer: torch.nn.Module


def take_out(base: torch.nn.Module) -> Callable[[], None]:
    """Stand the model's own layers where PEFT's stand now; how to put these back. PEFT's unload() would keep a
    trained head."""
    places = [
        _Place(parent, name, layer)
        for parent in base.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, OF_PEFT)
    ]
    for place in places:
        setattr(place.parent, place.name, own(place.layer))
    said = {name: vars(base).pop(name) for name in _SAID_BY_PEFT if name in vars(base)}
    return partial(_put_back, base, places, said)


_SAID_BY_PEFT = ("peft_config", "_hf_peft_config_loaded")


def _put_back(base: torch.nn.Module, places: Sequence[_Place], said: Mapping[str, Any]) -> None:
    vars(base).update(said)
    for place in reversed(places):  # one inside another comes first
        setattr(place.parent, place.name, place.layer)


@contextmanager
def weights_written() -> Iterator[None]:
    """safetensors has an error of its own where the disk takes no more."""
    try:
        yield
    except SafetensorError as error:
        raise OSError(str(error)) from error
