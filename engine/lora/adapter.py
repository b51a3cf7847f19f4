"""LoRA adapters on a model: inject one for training, load one from disk, save it, remove it."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from peft.utils.other import AuxiliaryTrainingWrapper
from safetensors import SafetensorError
from safetensors.torch import save_file

from ...core.errors import ModelError, SavingError, SettingsError
from ...core.files import read_json, says_disk_full
from ...core.host import Host, unwrap_peft
from ...records.folder import loras
from ...settings.definitions import LoraSettings
from ...train_utils import plural
from .biases import (
    KEPT_BIASES,
    adapter_biases,
    bias_of,
    is_in_saved_module,
    keep_biases,
    named_biases,
    refuse_lost_biases,
    scale_biases,
    swap_biases,
)
from .lora_load_errors import explain_load_error
from .saved_modules import resolve_saved_modules
from .state_guards import preserve_model_state
from .targets import (
    ALL_LINEAR,
    PEFT_LAYER_TYPES,
    Targets,
    is_multimodal,
    is_transposed,
    linear_layers,
    unwrap_layer,
)

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
TIED_WARNING = "Model (has|with) `tie_word_embeddings=True`"


def lora_config(lora: LoraSettings, model: Any, targets: Targets) -> LoraConfig:
    """Build PEFT's LoraConfig from the settings."""
    saved, alpha = resolve_saved_modules(lora, model, targets.names), lora.effective_alpha
    return LoraConfig(
        task_type="CAUSAL_LM",
        r=lora.rank,
        lora_alpha=alpha if alpha != int(alpha) else int(alpha),
        lora_dropout=lora.dropout,
        use_rslora=lora.rslora,
        use_dora=lora.dora,
        target_modules=ALL_LINEAR
        if lora.targets == ALL_LINEAR and not lora.layers and not is_multimodal(model)
        else list(targets.names),
        exclude_modules=list(targets.left_out) or None,
        modules_to_save=saved or None,
        fan_in_fan_out=any(is_transposed(m) for n, m in linear_layers(model) if n in targets.names),
        bias=cast(Any, lora.bias),
    )


@contextmanager
def inject_lora(base: torch.nn.Module, config: LoraConfig) -> Iterator[PeftModel]:
    """Inject a new LoRA for training; on exit it is removed and the base model is bit for bit as before."""
    try:
        yield _inject(base, config)
    finally:
        remove_peft_layers(base)


def _inject(base: torch.nn.Module, config: LoraConfig) -> PeftModel:
    keep_biases(base, config.bias)
    try:
        with warnings.catch_warnings():
            warnings.filterwarnings("ignore", TIED_WARNING)  # trained copies are tied below, LoRAs need not be
            model = get_peft_model(base, config)
    except ValueError as error:
        if problems := list(_expert_problems(config)):
            raise SettingsError(problems) from error
        hint = "Choose other target modules, such as q-k-v-o."
        raise ModelError(f"This model can't be trained with a LoRA: {error} {hint}") from error
    tie_weights(model)
    for name, weight in named_biases(model):  # with bias 'all', PEFT trains those behind a trained copy too
        weight.requires_grad_(weight.requires_grad and ".original_module." not in name)
    return model


def _expert_problems(config: LoraConfig) -> Iterator[str]:
    """Settings that PEFT does not support on experts; by now it has set `target_parameters` if it uses any."""
    if not getattr(config, "target_parameters", None):
        return
    clause = (
        "can't be used on this model's experts, which are stored in one tensor. {}, or choose target "
        "modules that leave out the experts (q-k-v-o)."
    )
    if config.lora_dropout:
        yield f"Dropout {config.lora_dropout:g} {clause.format('Set Dropout to 0')}"
    if config.use_dora:
        yield f"DoRA {clause.format('Turn DoRA off')}"


def tie_weights(model: PeftModel) -> None:
    """Share the trained copies of head and embeddings where the base model ties them."""
    base = model.get_base_model()
    wrappers = (base.get_input_embeddings(), base.get_output_embeddings())
    if not all(isinstance(wrapper, AuxiliaryTrainingWrapper) for wrapper in wrappers):
        return
    first, second = wrappers
    if first.original_module.weight is second.original_module.weight:
        for name in second.modules_to_save:
            second.modules_to_save[name].weight = first.modules_to_save[name].weight


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Save the LoRA in PEFT's two files; the same LoRA always gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    state = adapter_state(model, model.active_adapter)
    with translate_write_errors():
        save_file(dict(sorted(state.items())), folder / WEIGHTS, metadata={"format": "pt"})
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    config.base_model_name_or_path = str(model.get_base_model().name_or_path)
    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=_json_value)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def adapter_state(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    """A copy of the weights of a LoRA on the CPU, under their names in its file."""
    trained = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    trained = {key: weight for key, weight in trained.items() if not is_in_saved_module(key)}
    trained |= adapter_biases(model, bias_of(model.peft_config[name]))
    return {key: weight.detach().to("cpu", copy=True).contiguous() for key, weight in trained.items()}


def _json_value(value: object) -> object:
    return sorted(value) if isinstance(value, (set, frozenset)) else str(getattr(value, "value", value))


def lora_folder(lora: str | Path, host: Host) -> Path:
    """Folder of a LoRA, from a name, from NAME/checkpoint-40, or from a path given on the command line."""
    return lora if isinstance(lora, Path) else loras.find_lora(lora, host.folders.loras)


def load_lora(
    base: torch.nn.Module, folder: Path, name: str, strength: float = 1.0, *, called: str = ""
) -> PeftModel:
    """Load a LoRA from disk onto the base model; the base model keeps its flags and modes.

    `called` is the user's name for the LoRA where it differs from the adapter name.
    """
    if not (folder / CONFIG).is_file():
        raise SavingError(f"{folder} has no LoRA ({CONFIG} is missing). Choose another LoRA.")
    with preserve_model_state(base), ExitStack() as cleanup:
        cleanup.callback(remove_peft_layers, base)
        keep_biases(base, read_json(folder / CONFIG, {}).get("bias", "none"))
        try:
            model = PeftModel.from_pretrained(base, str(folder), adapter_name=_adapter_name(name))
        except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            reason = explain_load_error(error, folder, base)
            raise SavingError(f"The LoRA {(called or name)!r} can't be used with this model: {reason}") from error
        cleanup.pop_all()
    _scale(model, strength)
    scale_biases(base, strength)
    return model


@contextmanager
def loaded_lora(base: torch.nn.Module, folder: Path | None, name: str) -> Iterator[torch.nn.Module]:
    """Load a LoRA onto the base model within this context, or none."""
    if folder is None:
        yield base
        return
    try:
        yield load_lora(base, folder, name)
    finally:
        remove_peft_layers(base)


def _adapter_name(name: str) -> str:
    """PEFT uses the name as a module name: no dots, and no attribute of ModuleDict such as 'half'."""
    safe = name.replace(".", "_")
    return f"{safe}_" if hasattr(torch.nn.ModuleDict, safe) else safe


def _scale(model: PeftModel, strength: float) -> None:
    for module in model.modules():
        if isinstance(scaling := getattr(module, "scaling", None), dict):
            for name in scaling:
                scaling[name] *= strength


def put_on(name: str, strength: float, host: Host) -> None:
    """Load a LoRA or one of its checkpoints onto the host's model; after a failure the previous LoRAs stay."""
    folder, loaded = lora_folder(name, host), host.loaded_model()
    name = folder.relative_to(host.folders.loras).as_posix()
    base = unwrap_peft(loaded.model)
    refuse_lost_biases(base)
    try:
        with ExitStack() as cleanup:
            cleanup.callback(remove_peft_layers(base))
            model = load_lora(base, folder, name, strength)
            cleanup.pop_all()
    except SavingError as error:
        stays = plural(len(loaded.loras), "stays", "stay")
        remaining = f" {', '.join(loaded.loras)} {stays} attached." if loaded.loras else ""
        raise SavingError(f"{error}{remaining}") from error
    host.set_loras(model, (name,))


def take_off(host: Host) -> tuple[str, ...]:
    """Remove all LoRAs from the host's model and return their names; the base is bit for bit as before."""
    loaded = host.loaded_model()
    if isinstance(loaded.model, PeftModel):
        base = unwrap_peft(loaded.model)
        refuse_lost_biases(base)
        remove_peft_layers(base)
        host.set_loras(base, ())
    return loaded.loras


@contextmanager
def without_loras(host: Host) -> Iterator[tuple[torch.nn.Module, tuple[str, ...]]]:
    """Yield the host's model without its LoRAs, and their names; on exit the same LoRAs are put back."""
    loaded = host.loaded_model()
    has_loras, base = isinstance(loaded.model, PeftModel), unwrap_peft(loaded.model)
    refuse_lost_biases(base)
    with preserve_model_state(base):
        restore = remove_peft_layers(base)
        if has_loras:
            host.set_loras(base, ())
        try:
            yield base, loaded.loras
        finally:
            restore()
            if has_loras:
                host.set_loras(loaded.model, loaded.loras)


class _LayerPosition(NamedTuple):
    """Position of a PEFT layer in a model; it wraps one of the model's own layers."""

    parent: torch.nn.Module
    name: str
    layer: torch.nn.Module


def remove_peft_layers(base: torch.nn.Module) -> Callable[[], None]:
    """Replace PEFT's layers by the base layers and return a function that undoes it.

    PEFT's own unload() would keep a trained head.
    """
    positions = [
        _LayerPosition(parent, name, layer)
        for parent in base.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, PEFT_LAYER_TYPES)
    ]
    for position in positions:
        setattr(position.parent, position.name, unwrap_layer(position.layer))
    attributes = {name: vars(base).pop(name) for name in _PEFT_ATTRIBUTES if name in vars(base)}
    swap_biases(attributes.get(KEPT_BIASES, ()))
    return partial(_restore_layers, base, positions, attributes)


_PEFT_ATTRIBUTES = ("peft_config", "_hf_peft_config_loaded", KEPT_BIASES)


def _restore_layers(
    base: torch.nn.Module, positions: Sequence[_LayerPosition], attributes: Mapping[str, Any]
) -> None:
    vars(base).update(attributes)
    swap_biases(attributes.get(KEPT_BIASES, ()))
    for position in reversed(positions):  # a nested layer goes back before the one around it
        setattr(position.parent, position.name, position.layer)


@contextmanager
def translate_write_errors() -> Iterator[None]:
    """Turn the errors that safetensors and tokenizers raise on a full disk into an OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not (isinstance(error, SafetensorError) or says_disk_full(error)):
            raise
        raise OSError(str(error)) from error
