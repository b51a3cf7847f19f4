"""LoRA adapters on a model: inject one for training, load one from disk, save it, remove it, put it back."""

from __future__ import annotations

import copy
import json
import math
import warnings
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from pathlib import Path
from pickle import UnpicklingError
from typing import Any, TypeAlias, cast

import torch
from peft import LoraConfig, PeftModel, get_peft_model
from peft.tuners.lora import LoraLayer
from peft.utils import ModulesToSaveWrapper, get_peft_model_state_dict, set_peft_model_state_dict
from safetensors import SafetensorError
from safetensors.torch import load_file, save_file

from ...core.errors import ModelError, SavingError, SettingsError, first_line
from ...core.files import read_json, read_small_file, says_disk_full
from ...core.findings import Finding, advice
from ...core.host import Host, unwrap_peft
from ...records.folder import loras
from ...settings.definitions import LoraSettings
from ...train_utils import plural
from .peft_private import BIAS_WARNING, PEFT_ATTRIBUTES, PEFT_LAYER_TYPES, TIED_WARNING, tie_weights, unwrap_layer
from .state_guards import preserve_model_state
from .targets import (
    ALL_LINEAR,
    Targets,
    choose_targets,
    is_multimodal,
    is_transposed,
    linear_layers,
    refuse_misplaced_targets,
    resolve_saved_modules,
)

WEIGHTS, CONFIG = "adapter_model.safetensors", "adapter_config.json"
EXPERTS_CLAUSE = (
    "can't be used on this model's experts, which are stored in one tensor. {}, or choose target "
    "modules that leave out the experts (q-k-v-o)."
)
OTHER_MODEL_HINT = "The LoRA was probably made for another model."
# Attribute of a base model whose biases a LoRA has changed.
KEPT_BIASES = "_training_pro_biases"
# Biases of the base model, each with the values that it does not have at the moment.
Biases: TypeAlias = Sequence[tuple[torch.nn.Parameter, torch.Tensor]]


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
def inject_lora(base: torch.nn.Module, lora: LoraSettings) -> Iterator[tuple[PeftModel, Targets]]:
    """Inject a new LoRA for training; on exit it is removed and the base model is bit for bit as before."""
    targets = choose_targets(lora, base)
    config = lora_config(lora, base, targets)
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
        refuse_misplaced_targets(targets, model)
        yield model, targets
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
    bias = bias_of(model.peft_config[name])
    if bias == "all":
        trained |= dict(named_biases(model))
    # Modules that are trained in full have their biases within them.
    outside = (key for key in trained if ".original_module." not in key and ".modules_to_save." not in key)
    trained = {key: trained[key] for key in outside}
    if bias == "lora_only":  # PEFT's own saving leaves these out
        for layer_name, layer in model.named_modules():
            weight = getattr(layer.get_base_layer(), "bias", None) if isinstance(layer, LoraLayer) else None
            if weight is not None:
                trained[f"{layer_name}.base_layer.bias"] = weight
    return {key: weight.detach().to("cpu", copy=True).contiguous() for key, weight in trained.items()}


def lora_folder(lora: str | Path, host: Host) -> Path:
    """Folder of a LoRA, from a name, from NAME/checkpoint-40, or from a path given on the command line."""
    return lora if isinstance(lora, Path) else loras.find_lora(lora, host.folders.loras)


def _refuse_changed_base(config: Mapping[str, Any], name: str) -> None:
    init = str(config.get("init_lora_weights")).lower()
    if init.startswith(("pissa", "olora", "corda", "loftq", "lora_ga")):
        raise SavingError(
            f"The LoRA {name!r} was made with {init}, which changes the model's own weights when it is loaded. "
            "Convert it to a plain LoRA with PEFT (path_initial_model_for_weight_conversion)."
        )


def load_lora(base: torch.nn.Module, folder: Path, name: str, strength: float = 1.0) -> PeftModel:
    """Load a LoRA from disk onto the base model, which keeps its flags."""
    if not (folder / CONFIG).is_file():
        raise SavingError(f"{folder} has no LoRA ({CONFIG} is missing). Choose another LoRA.")
    _refuse_changed_base(read_json(folder / CONFIG, {}), name)
    # PEFT uses the name, which may be a path, as a module name: no dots, and no attribute of ModuleDict such as
    # 'half'. It also puts it into a replacement of `re.sub`, where a backslash would be an escape.
    adapter_name = name.replace(".", "_").replace("\\", "_")
    adapter_name += "_" * hasattr(torch.nn.ModuleDict, adapter_name)
    with preserve_model_state(base), ExitStack() as cleanup:
        cleanup.callback(remove_peft_layers, base)
        keep_biases(base, read_json(folder / CONFIG, {}).get("bias", "none"))
        try:
            model = PeftModel.from_pretrained(base, str(folder), adapter_name=adapter_name)
        except (ValueError, RuntimeError, KeyError, OSError, SafetensorError) as error:
            reason = _explain_load_error(error, folder, base)
            raise SavingError(f"The LoRA {name!r} can't be used with this model: {reason}") from error
        # PEFT leaves out what has no place, such as all of a LoRA whose layers have other names here.
        result = set_peft_model_state_dict(model, read_weights(folder), adapter_name=adapter_name)
        if odd := [key for key in result.unexpected_keys if ".lora_" in key]:
            raise SavingError(
                f"The LoRA {name!r} can't be used with this model: {len(odd)} of its weights have no "
                f"place in it ({odd[0]}). {OTHER_MODEL_HINT}"
            )
        cleanup.pop_all()
    if strength != 1:
        for module in model.modules():
            if isinstance(scaling := getattr(module, "scaling", None), dict):
                for each in scaling:
                    scaling[each] *= strength
        for weight, own in vars(base).get(KEPT_BIASES, ()):
            weight.data.copy_(own + strength * (weight.data - own))
        for module in model.modules():
            if isinstance(module, ModulesToSaveWrapper):
                own_weights = dict(module.original_module.named_parameters())
                for key, weight in module.modules_to_save[adapter_name].named_parameters():
                    weight.data.copy_(own_weights[key] + strength * (weight.data - own_weights[key]))
    return model


def _explain_load_error(error: Exception, folder: Path, base: torch.nn.Module) -> str:
    """Reduce an error of PEFT or torch, which may fill pages, to its cause; by default to its first line."""
    if isinstance(error, SafetensorError):
        message = first_line(error).removeprefix("Error while deserializing header: ")
        return f"{WEIGHTS} is damaged or incomplete ({message}). Copy or download it again."
    if "size mismatch" in str(error):  # torch's words
        return f"its weights have other shapes than the layers of this model. {OTHER_MODEL_HINT}"
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
def loaded_lora(
    base: torch.nn.Module, folder: Path | None, name: str, strength: float = 1.0
) -> Iterator[torch.nn.Module]:
    """Load a LoRA onto the base model within this context, or none."""
    try:
        yield load_lora(base, folder, name, strength) if folder else base
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


def renew(name: str, host: Host) -> None:
    """Load the only LoRA on the host's model again, at the same strength: a run has written new weights."""
    loaded = host.loaded_model()
    if loaded.loras != (name,):
        raise SavingError(f"{', '.join(loaded.loras)} are attached together.")
    (adapter_name,), strength = loaded.model.active_adapters, 1.0
    for layer in loaded.model.modules():
        if isinstance(layer, LoraLayer):
            rank, alpha = layer.r[adapter_name], layer.lora_alpha[adapter_name]
            rslora = loaded.model.peft_config[adapter_name].use_rslora
            strength = layer.scaling[adapter_name] * (math.sqrt(rank) if rslora else rank) / alpha
            break
    put_on(name, strength, host)


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
    """Replace PEFT's layers by the base layers and return a function that undoes it."""
    # PEFT's own unload() would keep a trained head.
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


def refuse_shape_mismatch(lora: LoraSettings, folder: Path) -> None:
    """SettingsError with all differences between the LoRA and the settings, before anything is loaded."""
    try:
        config = json.loads(read_small_file(folder / CONFIG))
    except (OSError, ValueError) as error:
        raise SavingError(
            f"{folder / CONFIG} can't be read: {error}. The LoRA can't be trained further. Choose another LoRA."
        ) from error
    config = config if isinstance(config, dict) else {}
    _refuse_changed_base(config, folder.name)
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

    def as_text(value: object) -> str:
        if isinstance(value, bool):
            return "on" if value else "off"
        return f"{value:g}" if isinstance(value, (int, float)) else str(value)

    problems = [
        f"{label} is {as_text(trained)} in the LoRA {folder.name!r}, but {as_text(requested)} in the settings. "
        f"To continue training this LoRA, set {label} to {as_text(trained)}."
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
    state, reason = read_weights(folder), ""
    trainable = {name for name, parameter in model.named_parameters() if parameter.requires_grad}
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


def snapshot_adapters(host: Host) -> Callable[[], None]:
    """Copy the LoRAs on the host's model, and return a function that attaches them to it when it is loaded again.

    Their folders are not read again, since they may have changed.
    """
    if host.model_status().problem or not isinstance(loaded := host.loaded_model().model, PeftModel):
        return lambda: None
    names, active = host.loaded_model().loras, list(loaded.active_adapters)
    adapters = {name: (config, adapter_state(loaded, name)) for name, config in loaded.peft_config.items()}
    scalings = {name: getattr(layer, "scaling", None) for name, layer in loaded.named_modules()}
    strengths = {name: dict(scaling) for name, scaling in scalings.items() if isinstance(scaling, dict)}

    def attach() -> None:
        base: Any = host.loaded_model().model
        first = next(iter(adapters))
        with preserve_model_state(base), warnings.catch_warnings():
            warnings.simplefilter("ignore")  # PEFT gave them when these LoRAs were first loaded
            keep_biases(base, bias_of(adapters[first][0]))
            model = get_peft_model(base, adapters[first][0], adapter_name=first)
            for name, (config, weights) in adapters.items():
                if name != first:
                    model.add_adapter(name, config)
                set_peft_model_state_dict(model, weights, adapter_name=name)
            for layer, strength in strengths.items():
                model.get_submodule(layer).scaling.update(strength)
            model.base_model.set_adapter(active)
            # PEFT makes a new LoRA trainable; this one is only used.
            model.requires_grad_(False)
            host.set_loras(model.eval(), names)

    return attach


def removed_message(names: Sequence[str]) -> str:
    """Message about LoRAs whose model is not loaded again."""
    verb, pronoun = ("is", "it") if len(names) == 1 else ("are", "them")
    return f"{', '.join(names)} {verb} detached. Attach {pronoun} again after the model is loaded."


def keep_biases(base: Any, bias: str) -> None:
    """Keep the base model's own biases, before a LoRA with this `bias` changes them."""
    if bias != "none":
        vars(base)[KEPT_BIASES] = [(weight, weight.detach().clone()) for _, weight in named_biases(base)]


def named_biases(model: torch.nn.Module) -> Iterator[tuple[str, torch.nn.Parameter]]:
    return ((name, weight) for name, weight in model.named_parameters() if name.endswith(".bias"))


def swap_biases(biases: Biases) -> None:
    """Exchange the values in the model for those that are kept."""
    for weight, kept in biases:
        current = weight.detach().clone()
        weight.data.copy_(kept)
        kept.copy_(current)


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


@contextmanager
def translate_write_errors() -> Iterator[None]:
    """Turn the errors that safetensors and tokenizers raise on a full disk into an OSError."""
    try:
        yield
    except Exception as error:
        if isinstance(error, OSError) or not (isinstance(error, SafetensorError) or says_disk_full(error)):
            raise
        raise OSError(str(error)) from error
