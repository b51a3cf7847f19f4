"""Which layers a LoRA sits on: names that everybody uses, as the layers of the model at hand.

Architectures call their layers otherwise, and some keep several in one: then 'q' is the layer that holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from re import sub
from typing import Any

import torch
from peft import LoraConfig, LoraModel
from peft.tuners.tuners_utils import BaseTunerLayer

from ...core.errors import SettingsError
from ...data.report import PARTS
from .peft_unwrap import own, own_modules

ALL = "all-linear"
OWN = "a list of your own"
_WORDS: Mapping[str, str] = {"q": "query", "k": "key", "v": "value", "o": "output", "down": "down"}
_FUSED = ("c_attn", "query_key_value", "qkv_proj", "qkv", "Wqkv")
_CALLED: Mapping[str, tuple[str, ...]] = {
    "q": ("q_proj", "query", "q_lin", "wq", *_FUSED),
    "k": ("k_proj", "key", "k_lin", "wk", *_FUSED),
    "v": ("v_proj", "value", "v_lin", "wv", *_FUSED),
    "o": ("o_proj", "out_proj", "wo", "attn.c_proj", "attention.dense", "self_attn.dense", "self_attention.dense"),
    "down": ("down_proj", "fc2", "dense_4h_to_h", "mlp.c_proj", "fc_out", "w2"),
}


@dataclass(frozen=True)
class Targets:
    """The layers by their whole names, what was asked for in words, and what no LoRA can sit on."""

    names: tuple[str, ...]
    what: str
    left_out: tuple[str, ...] = ()

    def words(self, names: Iterable[str] = ()) -> str:
        """'q-v: model.layers.0-15.self_attn.q_proj, ...', of where it really sits where that is known."""
        return f"{self.what}: {_in_short(names or self.names)}"


def resolved(asked: str | tuple[str, ...], model: torch.nn.Module) -> Targets:
    """Every layer that is meant; SettingsError with the layers that there are, where one is missing."""
    layers = dict(linear_layers(model))
    unfit = tuple(name for name, layer in layers.items() if not can_take_one(layer, name, model))
    if asked == ALL:
        what = "all linear layers of the text part" if sees_or_hears(model) else "all linear layers"
        return Targets(tuple(name for name in layers if name not in unfit), what, unfit)
    wanted = _wanted(asked)
    missing = [word for word, called in wanted.items() if not any(_is_one_of(name, called) for name in layers)]
    if missing:
        raise SettingsError([_missing(missing, layers)])
    names = tuple(name for name in layers if any(_is_one_of(name, called) for called in wanted.values()))
    if refused := [name for name in names if name in unfit]:
        raise SettingsError([_unfit(refused)])
    return Targets(names, asked if isinstance(asked, str) else OWN)


def _wanted(asked: str | tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What is wanted, in words, and what it may be called."""
    if isinstance(asked, str):
        return {_WORDS[part]: _CALLED[part] for part in PARTS[asked]}
    return {name: (name,) for name in asked}


def linear_layers(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that a LoRA can sit on, by their whole names: neither the head nor what looks at pictures."""
    head, text = own(model.get_output_embeddings()), _of_text(model)
    for name, module in own_modules(model):
        if module is not head and module in text and is_linear(module):
            yield name, module


def can_take_one(layer: torch.nn.Module, name: str, model: Any) -> bool:
    """Whether PEFT allows a LoRA on it, and it gives one tensor, to which what a LoRA gives can be added."""
    return _peft_allows(name, model) and (_is_plain(layer) or _gives_a_tensor(layer))


def _peft_allows(name: str, model: Any) -> bool:
    """Mamba's kernels take the weights of some layers past their wrapper, so PEFT refuses these."""
    asked = getattr(LoraModel, "_check_target_module_compatiblity", None)
    try:
        if asked is not None:
            asked(None, LoraConfig(), model, name.rpartition(".")[2])
    except ValueError:
        return False
    return True


def _is_plain(layer: torch.nn.Module) -> bool:
    kind = type(layer)
    return kind.forward is torch.nn.Linear.forward or not issubclass(kind, torch.nn.Linear) or is_quantized(layer)


def _gives_a_tensor(layer: Any) -> bool:
    """A router may be a linear layer that also chooses: a row tells. What cannot be tried is taken at its word."""
    weight = layer.weight
    row = torch.zeros(1, layer.in_features, device=weight.device)
    try:
        with torch.no_grad():
            return isinstance(layer(row.to(weight.dtype)), torch.Tensor)
    except (RuntimeError, TypeError, ValueError, NotImplementedError):
        return True


def sees_or_hears(model: Any) -> bool:
    """Whether parts of it are for pictures or sound, which no text ever reaches."""
    return model.config.get_text_config() is not model.config


def _of_text(model: Any) -> set[torch.nn.Module]:
    return set((model.get_decoder() if sees_or_hears(model) else model).modules())


def is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ == "Conv1D" or is_quantized(module)


def is_quantized(module: torch.nn.Module) -> bool:
    return type(module).__name__ in ("Linear4bit", "Linear8bitLt")


def is_transposed(module: torch.nn.Module) -> bool:
    """GPT-2 keeps its weights the other way round."""
    return type(module).__name__ == "Conv1D"


def kinds(model: torch.nn.Module) -> dict[str, int]:
    """The names of layers to choose from, and how often each occurs."""
    names = [name for name, layer in linear_layers(model) if can_take_one(layer, name, model)]
    return dict(sorted(Counter(name.rpartition(".")[2] for name in names).items()))


def adapted(model: torch.nn.Module) -> tuple[str, ...]:
    """Where a LoRA sits, by the model's own names; PEFT turns some layers into tensors of experts."""
    return tuple(
        _own_name(name, layer) for name, layer in model.named_modules() if isinstance(layer, BaseTunerLayer)
    )


def refuse_if_elsewhere(asked: Targets, model: torch.nn.Module) -> None:
    """On some models PEFT takes the name of a layer for the experts' tensor that was called so once."""
    there = set(adapted(model))
    lost = [name for name in asked.names if name not in there]
    if lost and asked.what == OWN:
        raise SettingsError(
            [
                f"Which layers: PEFT puts what is named {_in_short(lost)} on this model's "
                "experts. Choose all, or q-k-v-o, or leave these out."
            ]
        )


def _own_name(name: str, layer: Any) -> str:
    tensor = getattr(layer, "parameter_name", None)
    own = name.replace(".base_layer", "").removeprefix("base_model.model.")
    return f"{own}.{tensor}" if tensor else own


def _is_one_of(name: str, wanted: tuple[str, ...]) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in wanted)


def _missing(missing: list[str], layers: Mapping[str, torch.nn.Module]) -> str:
    there = sorted({name.rpartition(".")[2] for name in layers})
    return (
        f"Which layers: this model has no layer called {', '.join(missing)}. It has {', '.join(there)}. "
        "Choose all, or name some of these."
    )


def _unfit(refused: list[str]) -> str:
    return (
        f"Which layers: no LoRA can sit on {_in_short(refused)}; this architecture does not use them as plain "
        "layers. Leave them out, or choose all: that leaves them out by itself."
    )


def _in_short(names: Any) -> str:
    """'model.layers.0-15.self_attn.q_proj': the layers of a kind together."""
    several = sorted((sub(r"\.\d+\.", ".#.", name, count=1), name) for name in names)
    said = []
    for kind, group in groupby(several, key=lambda pair: pair[0]):
        numbers = [int(part) for _, name in group for part in name.split(".") if part.isdigit()]
        said.append(kind.replace("#", f"{min(numbers)}-{max(numbers)}") if numbers else kind)
    return ", ".join(said)
