"""llama.cpp's names of architectures, and its order of rows in layers."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core import gguf_header
from ...core.errors import ModelError
from ...core.files import read_json

Matrix: TypeAlias = NDArray[np.float32]

# `model_type` in config.json -> `general.architecture` in GGUF, for models whose answers were compared with
# llama.cpp's: docs/engine.md, 'A LoRA in llama.cpp'.
GGUF_ARCHITECTURES: Mapping[str, str] = {
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


@dataclass(frozen=True)
class LinearAttentionHeads:
    """Number of key and value heads of linear attention, and the size of a key."""

    keys: int = 0
    values: int = 0
    key_size: int = 0


@dataclass(frozen=True)
class BaseModelInfo:
    """What an export needs to know of the base model; no weights."""

    name: str
    architecture: str
    layers: int
    heads: int
    key_heads: int
    tied: bool  # head and embeddings share one tensor
    linear: LinearAttentionHeads = LinearAttentionHeads()


# Reordering functions by the last part of a layer's name.
RowOrders: TypeAlias = Mapping[str, Callable[[Matrix, BaseModelInfo], Matrix]]


# Rows in the wrong order raise no error, the text is only worse; docs/engine.md says how these were compared.
def interleave_rotary_halves(rows: Matrix, heads: int) -> Matrix:
    """Put the two rows of each rotary pair next to each other; transformers keeps them in the halves of a head."""
    # (head, half, pair) becomes (head, pair, half).
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def split_fused_qkv(rows: Matrix, heads: int, key_heads: int) -> Matrix:
    """All queries, then all keys, then all values; transformers groups them by key head."""
    # A group: the queries of one key head, then its key and its value.
    groups = rows.reshape(key_heads, heads // key_heads + 2, -1, rows.shape[1])
    queries, keys, values = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, rows.shape[1]) for part in (queries, keys, values)])


def group_by_value_index(rows: Matrix, heads: LinearAttentionHeads) -> Matrix:
    """First value head of every key head, then the second of every one; transformers groups them by key head."""
    values_per_key = heads.values // heads.keys
    return rows.reshape(heads.keys, values_per_key, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


def reorder_values(rows: Matrix, heads: LinearAttentionHeads) -> Matrix:
    """Reorder only the values, which follow the queries and keys."""
    value_start = 2 * heads.keys * heads.key_size
    return np.concatenate([rows[:value_start], group_by_value_index(rows[value_start:], heads)])


ROTARY_ORDERS: RowOrders = {
    "q_proj": lambda rows, base: interleave_rotary_halves(rows, base.heads),
    "k_proj": lambda rows, base: interleave_rotary_halves(rows, base.key_heads),
}
FUSED_QKV_ORDERS: RowOrders = {
    "query_key_value": lambda rows, base: split_fused_qkv(rows, base.heads, base.key_heads)
}
LINEAR_ATTENTION_ORDERS: RowOrders = {
    "in_proj_qkv": lambda rows, base: reorder_values(rows, base.linear),
    "in_proj_z": lambda rows, base: group_by_value_index(rows, base.linear),
    "in_proj_a": lambda rows, base: group_by_value_index(rows, base.linear),
    "in_proj_b": lambda rows, base: group_by_value_index(rows, base.linear),
}
LINEAR_ATTENTION_OUT_ORDERS: RowOrders = {
    "out_proj": lambda columns, base: group_by_value_index(columns, base.linear)
}
# Layers, by architecture, whose rows are ordered differently than in transformers.
ROW_ORDERS: Mapping[str, RowOrders] = {
    "llama": ROTARY_ORDERS,
    "mistral3": ROTARY_ORDERS,
    "granite": ROTARY_ORDERS,
    "smollm3": ROTARY_ORDERS,
    "arcee": ROTARY_ORDERS,
    "olmo": ROTARY_ORDERS,
    "gptneox": FUSED_QKV_ORDERS,
    "bloom": FUSED_QKV_ORDERS,
    "falcon": FUSED_QKV_ORDERS,
    "qwen35": LINEAR_ATTENTION_ORDERS,
    "qwen35moe": LINEAR_ATTENTION_ORDERS,
}
# The same for columns, which are passed as rows.
COLUMN_ORDERS: Mapping[str, RowOrders] = {
    "qwen35": LINEAR_ATTENTION_OUT_ORDERS,
    "qwen35moe": LINEAR_ATTENTION_OUT_ORDERS,
}
# Tensors for which llama.cpp reads a LoRA and then ignores it.
IGNORED_TENSORS: Mapping[str, tuple[str, ...]] = {"gemma4": ("per_layer_model_proj",)}

# The three fields of LinearAttentionHeads, in config.json and in a GGUF file.
_CONFIG_KEYS = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim")
_GGUF_KEYS = ("group_count", "time_step_rank", "state_size")


def read_base_model_info(model: Path) -> BaseModelInfo:
    """Read the base model's description from a folder with a config.json, or from a GGUF file."""
    base = _from_gguf(model) if model.is_file() else _from_config(model)
    if base.architecture not in GGUF_ARCHITECTURES.values():
        raise ModelError(
            f"{base.name} has the architecture {base.architecture!r}, whose LoRAs can't be exported as GGUF. "
            "Merge the LoRA into the model instead, and convert the merged model with llama.cpp."
        )
    return base


def _from_config(folder: Path) -> BaseModelInfo:
    config = read_json(folder / "config.json", {})
    text = config.get("text_config") or config
    heads = _int_or_zero(text.get("num_attention_heads", text.get("n_head")))
    model_type = str(text.get("model_type"))
    key_heads = _int_or_zero(text.get("num_key_value_heads", text.get("num_kv_heads")))
    if text.get("multi_query") and not text.get("new_decoder_architecture"):  # the first Falcon models
        key_heads = 1
    return BaseModelInfo(
        name=folder.resolve().name,
        architecture=GGUF_ARCHITECTURES.get(model_type, model_type),
        layers=_int_or_zero(text.get("num_hidden_layers", text.get("n_layer"))),
        heads=heads,
        key_heads=key_heads or heads,
        tied=bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True))),
        linear=LinearAttentionHeads(*(_int_or_zero(text.get(name)) for name in _CONFIG_KEYS)),
    )


def _from_gguf(file: Path) -> BaseModelInfo:
    try:
        fields, tensor_names = gguf_header.read_header(file), gguf_header.read_tensor_names(file)
    except (OSError, ValueError) as error:
        raise ModelError(
            f"{file} can't be read as a GGUF file: {error}. Choose another file (--model)."
        ) from error
    architecture = str(fields.get("general.architecture"))
    heads = _int_or_zero(fields.get(f"{architecture}.attention.head_count"))
    return BaseModelInfo(
        name=str(fields.get("general.name") or file.stem),
        architecture=architecture,
        layers=_int_or_zero(fields.get(f"{architecture}.block_count")),
        heads=heads,
        key_heads=_int_or_zero(fields.get(f"{architecture}.attention.head_count_kv")) or heads,
        tied="output.weight" not in tensor_names,
        linear=LinearAttentionHeads(
            *(_int_or_zero(fields.get(f"{architecture}.ssm.{name}")) for name in _GGUF_KEYS)
        ),
    )


def _int_or_zero(value: object) -> int:
    """The value if it is an integer, else 0; some models list a value per layer, which no row order uses."""
    return value if isinstance(value, int) else 0
