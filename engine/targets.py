"""Which layers a LoRA sits on: names that everybody uses, as the layers of the model at hand.

Architectures call their layers otherwise, and some keep several in one: then 'q' is the layer that holds it.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import groupby
from re import sub
from typing import Any

import torch

from ..core.errors import SettingsError

ALL = "all-linear"
PARTS: Mapping[str, tuple[str, ...]] = {
    "q-v": ("q", "v"),
    "q-k-v": ("q", "k", "v"),
    "q-k-v-o": ("q", "k", "v", "o"),
    "k-v-down": ("k", "v", "down"),
}
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
    """The layers by their whole names, and in words."""

    names: tuple[str, ...]
    words: str


def resolved(asked: str | tuple[str, ...], model: torch.nn.Module) -> Targets:
    """Every layer that is meant; SettingsError with the layers that there are, where one is missing."""
    layers = dict(linear_layers(model))
    if asked == ALL:
        what = "all linear layers of the text part" if sees_or_hears(model) else "all linear layers"
        return Targets(tuple(layers), f"{what}: {_in_short(layers)}")
    wanted = _wanted(asked)
    missing = [word for word, called in wanted.items() if not any(_is_one_of(name, called) for name in layers)]
    if missing:
        raise SettingsError([_missing(missing, layers)])
    names = tuple(name for name in layers if any(_is_one_of(name, called) for called in wanted.values()))
    return Targets(names, f"{asked if isinstance(asked, str) else 'a list of your own'}: {_in_short(names)}")


def _wanted(asked: str | tuple[str, ...]) -> dict[str, tuple[str, ...]]:
    """What is wanted, in words, and what it may be called."""
    if isinstance(asked, str):
        return {_WORDS[part]: _CALLED[part] for part in PARTS[asked]}
    return {name: (name,) for name in asked}


def linear_layers(model: Any) -> Iterator[tuple[str, torch.nn.Module]]:
    """The layers that a LoRA can sit on, by their whole names: neither the head nor what looks at pictures."""
    head, text = model.get_output_embeddings(), _of_text(model)
    for name, module in model.named_modules():
        if module is not head and module in text and is_linear(module):
            yield name, module


def sees_or_hears(model: Any) -> bool:
    """Whether parts of it are for pictures or sound, which no text ever reaches."""
    return model.config.get_text_config() is not model.config


def _of_text(model: Any) -> set[torch.nn.Module]:
    return set((model.get_decoder() if sees_or_hears(model) else model).modules())


def is_linear(module: torch.nn.Module) -> bool:
    return isinstance(module, torch.nn.Linear) or type(module).__name__ in ("Conv1D", "Linear4bit", "Linear8bitLt")


def is_transposed(module: torch.nn.Module) -> bool:
    """GPT-2 keeps its weights the other way round."""
    return type(module).__name__ == "Conv1D"


def kinds(model: torch.nn.Module) -> dict[str, int]:
    """The names of layers to choose from, and how often each occurs."""
    return dict(sorted(Counter(name.rpartition(".")[2] for name, _ in linear_layers(model)).items()))


def _is_one_of(name: str, wanted: tuple[str, ...]) -> bool:
    return any(name == one or name.endswith(f".{one}") for one in wanted)


def _missing(missing: list[str], layers: Mapping[str, torch.nn.Module]) -> str:
    there = sorted({name.rpartition(".")[2] for name in layers})
    return (
        f"Which layers: this model has no layer called {', '.join(missing)}. It has {', '.join(there)}. "
        "Choose all, or name some of these."
    )


def _in_short(names: Any) -> str:
    """'model.layers.0-15.self_attn.q_proj': the layers of a kind together."""
    several = sorted((sub(r"\.\d+\.", ".#.", name, count=1), name) for name in names)
    said = []
    for kind, group in groupby(several, key=lambda pair: pair[0]):
        numbers = [int(part) for _, name in group for part in name.split(".") if part.isdigit()]
        said.append(kind.replace("#", f"{min(numbers)}-{max(numbers)}") if numbers else kind)
    return ", ".join(said)
