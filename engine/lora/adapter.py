"""LoRA adapters on a model: inject one for training, load one from disk, save it, remove it."""

from __future__ import annotations

import copy
import json
import warnings
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model, get_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import save_file

from ...core.errors import ModelError, SavingError, SettingsError, first_line
from ...core.files import read_json, says_disk_full
from ...core.host import Host, unwrap_peft
from ...records.folder import loras
from ...settings.definitions import LoraSettings
from ...train_utils import format_count, plural
from .biases import (
    KEPT_BIASES,
    adapter_biases,
    bias_of,
    is_in_saved_module,
    keep_biases,
    named_biases,
    refuse_lost_biases,
    swap_biases,
)
from .peft_private import (
    PEFT_AFFIXES,
    PEFT_ATTRIBUTES,
    PEFT_LAYER_TYPES,
    SIZE_MISMATCH,
    TIED_WARNING,
    tie_weights,
    unwrap_layer,
)
from .state_guards import preserve_model_state
from .targets import ALL_LINEAR, Targets, is_multimodal, is_transposed, linear_layers, resolve_saved_modules

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
EXPERTS_CLAUSE = (
    "can't be used on this model's experts, which are stored in one tensor. {}, or choose target "
    "modules that leave out the experts (q-k-v-o)."
)
OTHER_MODEL_HINT = "The LoRA was probably made for another model."


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
        # PEFT's own word for all linear layers also covers experts that are kept in one tensor. Of a model with
        # parts for images, PEFT would take those too.
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
        keep_biases(base, config.bias)
        try:
            with warnings.catch_warnings():
                warnings.filterwarnings("ignore", TIED_WARNING)  # trained copies are tied below, LoRAs need not be
                model = get_peft_model(base, config)
        except ValueError as error:
            # By now, PEFT has set `target_parameters` if the LoRA is on experts: without dropout and DoRA.
            on_experts, unsupported = getattr(config, "target_parameters", None), list[str]()
            if on_experts and config.lora_dropout:
                unsupported.append(f"Dropout {config.lora_dropout:g} {EXPERTS_CLAUSE.format('Set Dropout to 0')}")
            if on_experts and config.use_dora:
                unsupported.append(f"DoRA {EXPERTS_CLAUSE.format('Turn DoRA off')}")
            if unsupported:
                raise SettingsError(unsupported) from error
            hint = "Choose other target modules, such as q-k-v-o."
            raise ModelError(f"This model can't be trained with a LoRA: {error} {hint}") from error
        tie_weights(model)
        for name, weight in named_biases(model):  # with bias 'all', PEFT trains those behind a trained copy too
            weight.requires_grad_(weight.requires_grad and ".original_module." not in name)
        yield model
    finally:
        remove_peft_layers(base)


def save_adapter(model: PeftModel, folder: Path) -> None:
    """Save the LoRA in PEFT's two files; the same LoRA always gives the same bytes."""
    folder.mkdir(parents=True, exist_ok=True)
    state = adapter_state(model, model.active_adapter)
    with translate_write_errors():
        # Sorted, so that the same weights give the same bytes.
        save_file(dict(sorted(state.items())), folder / WEIGHTS, metadata={"format": "pt"})
    # A copy: the LoRA may be trained further, and PEFT would take it for one that is only used.
    config = copy.copy(model.peft_config[model.active_adapter])
    config.inference_mode = True
    config.base_model_name_or_path = str(model.get_base_model().name_or_path)

    def plain(value: object) -> object:  # a set has no order of its own, and an enum is written as its value
        return sorted(value) if isinstance(value, (set, frozenset)) else str(getattr(value, "value", value))

    text = json.dumps(config.to_dict(), indent=2, sort_keys=True, default=plain)
    (folder / CONFIG).write_text(text + "\n", encoding="utf-8")


def adapter_state(model: PeftModel, name: str) -> dict[str, torch.Tensor]:
    """A copy of the weights of a LoRA on the CPU, under their names in its file."""
    trained = get_peft_model_state_dict(model, adapter_name=name, save_embedding_layers=False)
    trained = {key: weight for key, weight in trained.items() if not is_in_saved_module(key)}
    trained |= adapter_biases(model, bias_of(model.peft_config[name]))
    return {key: weight.detach().to("cpu", copy=True).contiguous() for key, weight in trained.items()}


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
    # PEFT uses the name as a module name: no dots, and no attribute of ModuleDict such as 'half'.
    adapter_name = name.replace(".", "_")
    adapter_name += "_" * hasattr(torch.nn.ModuleDict, adapter_name)
    with preserve_model_state(base), ExitStack() as cleanup:
        cleanup.callback(remove_peft_layers, base)
        keep_biases(base, read_json(folder / CONFIG, {}).get("bias", "none"))
        try:
            model = PeftModel.from_pretrained(base, str(folder), adapter_name=adapter_name)
        except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            reason = _explain_load_error(error, folder, base)
            raise SavingError(f"The LoRA {(called or name)!r} can't be used with this model: {reason}") from error
        cleanup.pop_all()
    if strength != 1:
        for module in model.modules():
            if isinstance(scaling := getattr(module, "scaling", None), dict):
                for each in scaling:
                    scaling[each] *= strength
        for weight, own in vars(base).get(KEPT_BIASES, ()):
            weight.data.copy_(own + strength * (weight.data - own))
    return model


def _explain_load_error(error: Exception, folder: Path, base: torch.nn.Module) -> str:
    """Reduce an error of PEFT or torch, which may fill pages, to its cause; by default to its first line."""
    if isinstance(error, SafetensorError):
        message = first_line(error).removeprefix("Error while deserializing header: ")
        return f"{WEIGHTS} is damaged or incomplete ({message}). Copy or download it again."
    mismatches = {
        PEFT_AFFIXES.sub("", name): [shape.replace(", ", " x ") for shape in (actual, expected)]
        for name, actual, expected in reversed(SIZE_MISMATCH.findall(str(error)))
    }
    if mismatches:
        layer, (actual, expected) = mismatches.popitem()
        differ = plural(len(mismatches), "differs", "differ")
        others = f", and {format_count(len(mismatches), 'more layer')} {differ}" if mismatches else ""
        return f"its weights for {layer} are {actual}, but this model needs {expected}{others}. {OTHER_MODEL_HINT}"
    targets = read_json(folder / CONFIG, {}).get("target_modules")
    targets = targets if isinstance(targets, list) else []
    existing = [f".{name}" for name, _ in base.named_modules()]
    missing = sorted(target for target in targets if not any(name.endswith(f".{target}") for name in existing))
    if not missing:
        return first_line(error)
    first = ", ".join(missing[:3]) + (" and more" if missing[3:] else "")
    return (
        f"{len(missing)} of its {len(targets)} target modules {plural(len(missing), 'is', 'are')} not in this "
        f"model ({first}). {OTHER_MODEL_HINT}"
    )


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


def put_on(name: str, strength: float, host: Host) -> None:
    """Load a LoRA or one of its checkpoints onto the host's model; after a failure the previous LoRAs stay."""
    folder, loaded = lora_folder(name, host), host.loaded_model()
    name = folder.relative_to(host.folders.loras).as_posix()
    base = unwrap_peft(loaded.model)
    refuse_lost_biases(base)
    try:
        with ExitStack() as cleanup:
            # The LoRAs that are on come off first, and are put back if the new one does not fit.
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


def remove_peft_layers(base: torch.nn.Module) -> Callable[[], None]:
    """Replace PEFT's layers by the base layers and return a function that undoes it.

    PEFT's own unload() would keep a trained head.
    """
    found = [
        (parent, name, layer)
        for parent in base.modules()
        for name, layer in parent.named_children()
        if isinstance(layer, PEFT_LAYER_TYPES)
    ]
    # First all layers are found, then replaced: a replaced layer would hide those inside it.
    for parent, name, layer in found:
        setattr(parent, name, unwrap_layer(layer))
    attributes = {name: vars(base).pop(name) for name in (*PEFT_ATTRIBUTES, KEPT_BIASES) if name in vars(base)}
    swap_biases(attributes.get(KEPT_BIASES, ()))

    def restore() -> None:
        vars(base).update(attributes)
        swap_biases(attributes.get(KEPT_BIASES, ()))
        for parent, name, layer in reversed(found):  # a nested layer goes back before the one around it
            setattr(parent, name, layer)

    return restore


@contextmanager
def translate_write_errors() -> Iterator[None]:
    """Turn the errors that safetensors and tokenizers raise on a full disk into an OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not (isinstance(error, SafetensorError) or says_disk_full(error)):
            raise
        raise OSError(str(error)) from error
