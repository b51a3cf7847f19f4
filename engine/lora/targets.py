"""The layers that are trained: common names such as q-k-v-o, resolved to the layers of the model at hand."""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from itertools import groupby
from re import sub
from typing import Any, NamedTuple

import torch

from ...core.errors import SettingsError
from ...core.model_shape import OUTER_LAYERS, TARGET_CHOICES, ModelShape
from ...settings.definitions import LoraSettings
from .peft_private import adapted_layers, named_base_modules, peft_allows, unwrap_layer

ALL_LINEAR = "all-linear"
CUSTOM_LIST = "the layers in your list"
# One layer for query, key and value: whichever of them is asked for, the whole layer is trained.
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv")
_DENSE = ("attention.dense", "self_attn.dense", "self_attention.dense")
# Each with its word in messages, and the names that it may have.
_NAMES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "q": ("query", ("q_proj", "query", "q_lin", "wq", *_FUSED)),
    "k": ("key", ("k_proj", "key", "k_lin", "wk", *_FUSED)),
    "v": ("value", ("v_proj", "value", "v_lin", "wv", *_FUSED)),
    "o": ("output", ("o_proj", "out_proj", "wo", "attn.c_proj", *_DENSE)),
    "down": ("down", ("down_proj", "fc2", "dense_4h_to_h", "mlp.c_proj", "fc_out", "w2")),
}


class Targets(NamedTuple):
    """Full names of the target layers, the request in words, and layers that cannot hold a LoRA."""

    names: tuple[str, ...]
    what: str
    left_out: tuple[str, ...] = ()

    def words(self, names: Iterable[str] = ()) -> str:
        """Summary such as 'q-v: model.layers.0-15.self_attn.q_proj, ...', of the actual layers if given."""
        return f"{self.what}: {_as_ranges(names or self.names)}"


def choose_targets(lora: LoraSettings, model: Any) -> Targets:
    """The layers that get a LoRA; SettingsError if a name or a decoder layer is missing."""
    targets = resolve_targets(lora.targets, model)
    if not lora.layers:
        return targets
    count, problem = model.config.get_text_config().num_hidden_layers, ""
    numbers = {name: next(map(int, filter(str.isdigit, name.split("."))), None) for name in targets.names}
    # Those outside of any decoder layer, such as the head, stay.
    names = tuple(name for name, number in numbers.items() if number is None or number in lora.layers)
    if beyond := sorted(number for number in lora.layers if number >= count):
        problem = f"there is no layer {beyond[0]}. This model has {count} layers, numbered 0 to {count - 1}."
    elif lora.targets == ALL_LINEAR and has_experts(model):
        problem = "PEFT can't train the experts of only some layers. Use the target modules q-k-v-o."
    elif not names:
        selected = f"the layers that you selected ({lora.layers_to_transform})"
        problem = f"no target modules are in {selected}. Choose other layers."
    if problem:
        raise SettingsError([f"Layers to transform: {problem}"])
    return Targets(names, f"{targets.what}, layers {lora.layers_to_transform}", targets.left_out)


def has_experts(model: Any) -> bool:
    shape = ModelShape.of(model.config.to_dict())
    return shape is not None and shape.experts is not None


def resolve_targets(targets: str | tuple[str, ...], model: torch.nn.Module) -> Targets:
    """Resolve the requested layers; SettingsError with the existing names if one is missing."""
    layers = dict(linear_layers(model))
    unfit = tuple(name for name, layer in layers.items() if not can_hold_lora(layer, name, model))
    if targets == ALL_LINEAR:
        description = "all linear layers of the language model" if is_multimodal(model) else "all linear layers"
        return Targets(tuple(name for name in layers if name not in unfit), description, unfit)
    # The requested layers as words, each with the names that it may have.
    if isinstance(targets, str):
        outer: dict[str, dict[str, torch.nn.Module]] = {}
        requested = dict(_NAMES[part] for part in TARGET_CHOICES[targets])
    else:
        outer = outer_layers(model)
        requested = {name: (name, *outer.get(name, ())) for name in targets}
    named = [*layers, *(name for names in outer.values() for name in names)]
    missing = [
        label for label, suffixes in requested.items() if not any(matches_any(name, suffixes) for name in named)
    ]
    if missing:
        existing = ", ".join(dict.fromkeys([*sorted(name.rpartition(".")[2] for name in layers), *OUTER_LAYERS]))
        problem = f"this model has no layer called {', '.join(missing)}. Its layers are {existing}."
        raise SettingsError([f"Target modules: {problem} Choose all linear layers, or enter some of these."])
    names = tuple(name for name in named if any(matches_any(name, suffixes) for suffixes in requested.values()))
    if selected_unfit := [name for name in names if name in unfit]:
        raise SettingsError(
            [
                f"Target modules: a LoRA can't be added to {_as_ranges(selected_unfit)}, because this "
                "architecture does not use them as plain linear layers. Remove them, or choose 'All linear "
                "layers', which skips them."
            ]
        )
    return Targets(names, targets if isinstance(targets, str) else CUSTOM_LIST)


def linear_layers(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """Linear layers with their full names, without the head and without vision or audio parts."""
    # As in PEFT's 'all-linear', the head is left out.
    head = unwrap_layer(model.get_output_embeddings())
    text_modules = set((model.get_decoder() if is_multimodal(model) else model).modules())
    for name, module in named_base_modules(model):
        if module is not head and module in text_modules and is_linear(module):
            yield name, module


def outer_layers(model: Any) -> dict[str, dict[str, torch.nn.Module]]:
    """Embeddings and output layer with their full names, under the words that mean them in any model."""
    layers = (model.get_input_embeddings(), model.get_output_embeddings())
    words = {word: unwrap_layer(layer) for word, layer in zip(OUTER_LAYERS, layers, strict=True)}
    modules = list(named_base_modules(model))
    return {word: {name: module for name, module in modules if module is layer} for word, layer in words.items()}


def can_hold_lora(layer: Any, name: str, model: Any) -> bool:
    """Whether PEFT allows a LoRA on the layer and its output is a single tensor, so that a delta can be added."""
    if not peft_allows(name, model):
        return False
    cls = type(layer)
    if cls.forward is torch.nn.Linear.forward or not issubclass(cls, torch.nn.Linear) or is_quantized(layer):
        return True
    # A router may be a linear layer that also selects experts, so one row is tried.
    row = torch.zeros(1, layer.in_features, device=layer.weight.device, dtype=layer.weight.dtype)
    try:
        with torch.no_grad():
            return isinstance(layer(row), torch.Tensor)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return True


def is_multimodal(model: Any) -> bool:
    """Whether the model has parts for images or audio, which text never reaches."""
    return model.config.get_text_config() is not model.config


def is_linear(module: torch.nn.Module) -> bool:
    is_embedding = isinstance(module, torch.nn.Embedding)  # which may be packed
    return (
        isinstance(module, torch.nn.Linear) or is_transposed(module) or (is_quantized(module) and not is_embedding)
    )


def is_quantized(module: torch.nn.Module) -> bool:
    return type(module).__name__ in ("Linear4bit", "Linear8bitLt", "PackedLinear", "PackedEmbedding")


def is_transposed(module: torch.nn.Module) -> bool:
    """Whether the weight is stored transposed, as in GPT-2."""
    return type(module).__name__ == "Conv1D"


def count_layer_names(model: torch.nn.Module) -> dict[str, int]:
    """Count the layers per short name that a user can choose as targets."""
    names = [name for name, layer in linear_layers(model) if can_hold_lora(layer, name, model)]
    outer = {word: len(layers) for word, layers in outer_layers(model).items() if layers}
    return dict(sorted(Counter(name.rpartition(".")[2] for name in names).items())) | outer


def refuse_misplaced_targets(targets: Targets, model: torch.nn.Module) -> None:
    """Refuse names that PEFT maps to a tensor of experts because older versions of the model used them for it."""
    actual = set(adapted_layers(model))
    misplaced = [name for name in targets.names if name not in actual]
    if misplaced and targets.what == CUSTOM_LIST:
        raise SettingsError(
            [
                f"Target modules: your list names {_as_ranges(misplaced)}, but PEFT would add the LoRA to this "
                "model's experts instead. Remove these names from your list, or choose 'All linear layers' or "
                "'q-k-v-o'."
            ]
        )


def tied_layer_notes(targets: Collection[str], saved: Collection[str], model: Any) -> Iterator[str]:
    """Explain what is trained apart where the embeddings and the output layer share their weights."""
    layers = {name: layer for found in outer_layers(model).values() for name, layer in found.items()}
    is_tied = len(layers) == 2 and len({id(layer.weight) for layer in layers.values()}) == 1
    if is_tied and (layers.keys() & set(targets) or len(layers.keys() & set(saved)) == 1):
        yield (
            "In this model, the embeddings and the output layer share their weights. This run trains them "
            "separately, and a merged model stores both."
        )


def matches_any(name: str, suffixes: tuple[str, ...]) -> bool:
    return any(name == suffix or name.endswith(f".{suffix}") for suffix in suffixes)


def _as_ranges(names: Any) -> str:
    """Join names as ranges, such as 'model.layers.0-15.self_attn.q_proj'."""
    patterns = sorted((sub(r"\.\d+\.", ".#.", name, count=1), name) for name in names)
    ranges = []
    for pattern, group in groupby(patterns, key=lambda pair: pair[0]):
        numbers = [int(part) for _, name in group for part in name.split(".") if part.isdigit()]
        ranges.append(pattern.replace("#", f"{min(numbers)}-{max(numbers)}") if numbers else pattern)
    return ", ".join(ranges)


def resolve_saved_modules(lora: LoraSettings, model: Any, targets: Sequence[str]) -> list[str]:
    """Full names of the modules; SettingsError for those that the model lacks or that can't be trained."""
    modules, outer = dict(named_base_modules(model)), outer_layers(model)
    head = [name for found in outer.values() for name in found] if lora.train_head else []
    saved = dict.fromkeys(head)
    for requested in lora.saved_modules:
        found = [name for name in modules if matches_any(name, (requested, *outer.get(requested, ())))]
        if not found:
            weighty = (name for name, module in modules.items() if list(module.parameters(recurse=False)))
            with_weights = {name.rpartition(".")[2] for name in weighty}
            existing = ", ".join([*OUTER_LAYERS, *sorted(with_weights.difference(OUTER_LAYERS))])
            problem = f"this model has no module called {requested}. Its modules are {existing}."
            raise SettingsError([f"Modules to save: {problem}"])
        saved |= dict.fromkeys(found)
    label = "Target modules: Train Head" if set(saved) <= set(head) else "Modules to save: this setting"
    for name in saved:
        module, problem = modules[name], ""
        inner = [target for target in targets if target == name or target.startswith(f"{name}.")]
        if inner:
            other = "it also" if inner[0] == name else inner[0]
            problem = f" in full, but {other} gets a LoRA. For each layer, choose either full training or a LoRA."
        elif any(other != name and other.startswith(f"{name}.") for other in saved):
            problem = " in full, including the modules inside it. Remove those modules from the setting."
        elif not any(True for _ in module.parameters()):
            problem = ", which has no weights. Choose another module."
        elif any(is_quantized(layer) for layer in module.modules()):
            problem = " in full, but it is quantized. Load the model in 16 or 32 bits, or choose another module."
        if problem:
            raise SettingsError([f"{label} trains {name}{problem}"])
    return list(saved)
