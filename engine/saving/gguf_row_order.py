"""How llama.cpp has a model: by which name it knows the architecture, and in which order a layer's rows lie."""

from __future__ import annotations

import struct
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core import gguf_header
from ...core.errors import ModelError
from ...core.files import read_json

Rows: TypeAlias = NDArray[np.float32]

NAMES: Mapping[str, str] = {
    "llama": "llama",
    "mistral": "llama",
    "mixtral": "llama",
    "granite": "granite",
    "smollm3": "smollm3",
    "arcee": "arcee",
    "olmo": "olmo",
    "olmo2": "olmo2",
    "qwen2": "qwen2",
    "qwen3": "qwen3",
    "qwen3_moe": "qwen3moe",
    "qwen3_5": "qwen35",
    "qwen3_5_text": "qwen35",
    "qwen3_5_moe": "qwen35moe",
    "qwen3_5_moe_text": "qwen35moe",
    "ministral3": "mistral3",
    "lfm2": "lfm2",
    "qwen2_moe": "qwen2moe",
    "gpt_oss": "gpt-oss",
    "gemma4": "gemma4",
    "gemma4_text": "gemma4",
    "gemma": "gemma",
    "gemma2": "gemma2",
    "gemma3": "gemma3",
    "gemma3_text": "gemma3",
    "phi": "phi2",
    "phi3": "phi3",
    "gpt2": "gpt2",
    "gpt_neox": "gptneox",
    "bloom": "bloom",
    "falcon": "falcon",
    "starcoder2": "starcoder2",
    "stablelm": "stablelm",
    "cohere": "command-r",
    "cohere2": "cohere2",
    "glm4": "glm4",
    "nemotron": "nemotron",
    "exaone4": "exaone4",
    "seed_oss": "seed_oss",
    "ernie4_5": "ernie4_5",
    "apertus": "apertus",
    "hunyuan_v1_dense": "hunyuan-dense",
}
"""`model_type` in config.json -> `general.architecture` in a GGUF file: those whose answers were compared."""


@dataclass(frozen=True)
class LinearHeads:
    """Of linear attention, in the layers that have it: how many for keys and values, and how long a key is."""

    keys: int = 0
    values: int = 0
    key_size: int = 0


@dataclass(frozen=True)
class Base:
    """What has to be known of the model that a LoRA sits on; no weights."""

    name: str
    architecture: str
    layers: int
    heads: int
    key_heads: int
    tied: bool
    """Whether head and embeddings are one tensor."""
    linear: LinearHeads = LinearHeads()


Orders: TypeAlias = Mapping[str, Callable[[Rows, Base], Rows]]
"""By the last word of a layer's name."""


def in_pairs(rows: Rows, heads: int) -> Rows:
    """What is rotated together side by side; in transformers the halves of a head are."""
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def one_after_another(rows: Rows, heads: int, key_heads: int) -> Rows:
    """First what asks of all heads, then all keys, then all values; in transformers key by key."""
    groups = rows.reshape(key_heads, heads // key_heads + 2, -1, rows.shape[1])
    asking, keys, values = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, rows.shape[1]) for part in (asking, keys, values)])


def value_by_value(rows: Rows, heads: LinearHeads) -> Rows:
    """First the first value of each key, then the second of each; in transformers key by key."""
    of_each = heads.values // heads.keys
    return rows.reshape(heads.keys, of_each, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


def values_behind(rows: Rows, heads: LinearHeads) -> Rows:
    """What asks and the keys stay; the values behind them go value by value."""
    before = 2 * heads.keys * heads.key_size
    return np.concatenate([rows[:before], value_by_value(rows[before:], heads)])


ROTATED: Orders = {
    "q_proj": lambda rows, base: in_pairs(rows, base.heads),
    "k_proj": lambda rows, base: in_pairs(rows, base.key_heads),
}
FUSED: Orders = {"query_key_value": lambda rows, base: one_after_another(rows, base.heads, base.key_heads)}
LINEAR: Orders = {
    "in_proj_qkv": lambda rows, base: values_behind(rows, base.linear),
    "in_proj_z": lambda rows, base: value_by_value(rows, base.linear),
    "in_proj_a": lambda rows, base: value_by_value(rows, base.linear),
    "in_proj_b": lambda rows, base: value_by_value(rows, base.linear),
}
LINEAR_OUT: Orders = {"out_proj": lambda columns, base: value_by_value(columns, base.linear)}
OTHER_ROWS: Mapping[str, Orders] = {
    "llama": ROTATED,
    "mistral3": ROTATED,
    "granite": ROTATED,
    "smollm3": ROTATED,
    "arcee": ROTATED,
    "olmo": ROTATED,
    "gptneox": FUSED,
    "bloom": FUSED,
    "falcon": FUSED,
    "qwen35": LINEAR,
    "qwen35moe": LINEAR,
}
"""By architecture, the layers whose rows lie in another order than in transformers; in all others they do not."""
OTHER_COLUMNS: Mapping[str, Orders] = {
    "qwen35": LINEAR_OUT,
    "qwen35moe": LINEAR_OUT,
}
"""The same of columns, here given as rows."""

NOT_ADDED: Mapping[str, tuple[str, ...]] = {"gemma4": ("per_layer_model_proj",)}
"""Tensors on which llama.cpp reads a LoRA and then passes it over."""

_LINEAR = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim")
_LINEAR_IN_FILE = ("group_count", "time_step_rank", "state_size")


def base_of(model: Path) -> Base:
    """Of a folder with a config.json, or of the very GGUF file that the LoRA is for."""
    found = _of_file(model) if model.is_file() else _of_config(model)
    if found.architecture not in NAMES.values():
        raise ModelError(
            f"{found.name} is of the architecture {found.architecture!r}, for which no LoRA can be written as "
            "GGUF here. Bake it in instead (merge), and convert the merged model with llama.cpp."
        )
    return found


def _of_config(folder: Path) -> Base:
    config = read_json(folder / "config.json", {})
    text = config.get("text_config") or config
    heads = _whole(text.get("num_attention_heads", text.get("n_head")))
    kind = str(text.get("model_type"))
    return Base(
        name=folder.resolve().name,
        architecture=NAMES.get(kind, kind),
        layers=_whole(text.get("num_hidden_layers", text.get("n_layer"))),
        heads=heads,
        key_heads=_key_heads(text) or heads,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))),
        linear=LinearHeads(*(_whole(text.get(name)) for name in _LINEAR)),
    )


def _key_heads(config: Mapping[str, Any]) -> int:
    """0 where it is not said, then it is all heads; the first Falcons say it in a word of their own."""
    if config.get("multi_query") and not config.get("new_decoder_architecture"):
        return 1
    return _whole(config.get("num_key_value_heads", config.get("num_kv_heads")))


def _of_file(file: Path) -> Base:
    try:
        said, names = gguf_header.header(file), gguf_header.tensors(file)
    except (OSError, ValueError, struct.error) as error:
        raise ModelError(f"{file} cannot be read as a GGUF file: {error}. Name another one (--model).") from error
    kind = str(said.get("general.architecture"))
    heads = _whole(said.get(f"{kind}.attention.head_count"))
    return Base(
        name=str(said.get("general.name") or file.stem),
        architecture=kind,
        layers=_whole(said.get(f"{kind}.block_count")),
        heads=heads,
        key_heads=_whole(said.get(f"{kind}.attention.head_count_kv")) or heads,
        tied="output.weight" not in names,
        linear=LinearHeads(*(_whole(said.get(f"{kind}.ssm.{name}")) for name in _LINEAR_IN_FILE)),
    )


def _whole(value: object) -> int:
    """Some models have a list, each layer its own: then 0, which is of use for no order of rows."""
    return value if isinstance(value, int) else 0
