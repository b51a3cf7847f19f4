"""Export a LoRA as a GGUF file for llama.cpp, without reading any weights of the model."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from importlib.util import find_spec
from pathlib import Path
from typing import Any, NamedTuple, TypeAlias

import numpy as np
from numpy.typing import NDArray

from ...core import gguf_header
from ...core.engine import GgufRequest
from ...core.errors import ModelError, SavingError
from ...core.files import atomic_write, read_json, write_error_reason
from ...core.host import Host
from ...core.version import install_command
from ...records.folder import choose_output, loras
from ..lora import adapter

Matrix: TypeAlias = NDArray[np.float32]

PREFIX = "base_model.model."
LORA_KEY = re.compile(rf"^(?:{re.escape(PREFIX)})?(?P<layer>.+)\.lora_(?:embedding_)?(?P<half>[AB])(?:\.weight)?$")
# The base model's own head. If a LoRA targets the head, PEFT saves this copy, too.
BASE_LAYER_KEY = re.compile(r"\.base_layer\.(weight|bias)$")
# Options in PEFT's config that make the delta something other than strength x up x down.
UNSUPPORTED_OPTIONS = ("use_bdlora", "use_qalora", "alora_invocation_tokens", "layer_replication", "kasa_config")
MERGE_HINT = "Merge the LoRA into the model instead, and convert the merged model with llama.cpp."
ATTENTION_ONLY_HINT = " Or train a LoRA on q-k-v-o only."
# Of a LoRA on this tensor, llama.cpp looks up rows of A, so that A is transposed.
EMBEDDINGS = "token_embd"
# The numbers of BaseModelInfo that order rows, as the header of a GGUF file names them after the architecture.
HEAD_KEYS: Mapping[str, str] = {
    "heads": "attention.head_count",
    "key_heads": "attention.head_count_kv",
    "linear_keys": "ssm.group_count",
    "linear_values": "ssm.time_step_rank",
    "linear_key_size": "ssm.state_size",
}
Tensors = Mapping[str, Matrix]


class LayerDelta(NamedTuple):
    """Delta of one layer: strength x up x down."""

    down: Matrix
    up: Matrix
    strength: float


def export_gguf(request: GgufRequest, host: Host) -> Path:
    """Export the LoRA to a GGUF file; a file under the default name in the LoRA's folder is overwritten."""
    if find_spec("gguf") is None:
        raise ModelError(f"Export needs the gguf package. Install it: {install_command('gguf')}")
    folder, name = adapter.lora_folder(request.lora, host).absolute(), str(request.lora)
    out = loras.gguf_file(folder)
    if request.out:
        out = choose_output(request.out, host.folders, own=out.parent)
        if out.exists():
            raise SavingError(f"{out} already exists. Delete it, or choose another name.")
    config = read_json(folder / adapter.CONFIG, {})
    if not config:
        raise SavingError(f"{folder} has no LoRA ({adapter.CONFIG} is missing or damaged). Choose another LoRA.")
    # The folder with the base model's config, or its GGUF file.
    model, models = request.model or str(config.get("base_model_name_or_path") or ""), host.folders.models
    candidates = (models / model, Path(model), models / Path(model.replace("\\", "/")).name) if model else ()
    found = [p for p in candidates if (p.suffix == ".gguf" and p.is_file()) or (p / "config.json").is_file()]
    if not found and request.model:
        raise ModelError(
            f"There is no model {model!r} in {models}, and no folder or GGUF file with that path. Choose another "
            "model (--model)."
        )
    if not found:
        origin = f"The LoRA's base model, {model!r}," if model else "The LoRA's base model"
        raise ModelError(
            f"{origin} was not found, and the export needs its config. Enter the model's folder or its GGUF file "
            "(--model)."
        )
    base = read_base_model_info(found[0])
    tensors, alpha = _gguf_tensors(_load_layers(folder, config, name), base, name)
    import gguf

    try:
        with atomic_write(out) as temporary:
            writer = gguf.GGUFWriter(temporary, base.architecture)
            try:
                writer.add_type(gguf.GGUFType.ADAPTER)
                writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
                writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
                writer.add_name(loras.gguf_file(folder).stem)
                writer.add_base_model_count(1)
                writer.add_base_model_name(0, base.name)
                if base.architecture in ROW_ORDERS:  # a model with other heads needs an export of its own
                    for field, key in HEAD_KEYS.items():
                        if number := getattr(base, field):
                            writer.add_uint32(f"{base.architecture}.{key}", number)
                for tensor_name, tensor in sorted(tensors.items()):
                    writer.add_tensor(tensor_name, np.ascontiguousarray(tensor))
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.write_tensors_to_file()
            finally:
                writer.close()
    except OSError as error:
        raise SavingError(f"{out} can't be written: {write_error_reason(error, out.parent)}.") from error
    return out


def _load_layers(folder: Path, config: Mapping[str, Any], lora_name: str) -> dict[str, LayerDelta]:
    """Layers by their names in transformers; SavingError with all problems if GGUF cannot hold them."""
    weights: Tensors = {key: tensor.float().numpy() for key, tensor in adapter.read_weights(folder).items()}
    problems: list[str] = []
    peft_type = str(config.get("peft_type", "LORA"))
    extra = [name for name in weights if not (LORA_KEY.match(name) or BASE_LAYER_KEY.search(name))]
    if peft_type != "LORA":
        problems.append(f"its type is {peft_type}, but llama.cpp supports only LoRAs")
    elif config.get("use_dora") or any("lora_magnitude_vector" in name for name in extra):
        problems.append("it was trained with DoRA, which llama.cpp does not support")
    elif config.get("bias", "none") != "none" or any(name.endswith(".bias") for name in extra):
        problems.append("it has biases, which the GGUF format does not support")
    elif extra:
        others = _examples(extra)
        problems.append(f"it contains weights besides those of the LoRA, for example from Train Head ({others})")
    if options := [option for option in UNSUPPORTED_OPTIONS if config.get(option)]:
        problems.append(f"it uses the option {options[0]}, which llama.cpp does not support")
    if nonlinear := [name for name, weight in weights.items() if LORA_KEY.match(name) and weight.ndim != 2]:
        problems.append(f"it changes layers that are not linear ({_examples(nonlinear)})")
    if experts := [name for name in weights if "experts" in name]:
        problems.append(f"it changes experts, which llama.cpp stores in one tensor ({_examples(experts)})")
    if problems:
        start = f"The LoRA {lora_name!r} can't be exported as GGUF: "
        remedy = MERGE_HINT + (ATTENTION_ONLY_HINT if experts else "")
        raise SavingError(f"{start}{'; '.join(problems)}. {remedy}")
    # A LoRA of a layer is B x A: `down` has a row for each rank, `up` a column.
    halves = {(m["layer"], m["half"]): weights[m.string] for m in map(LORA_KEY.match, weights) if m}
    names = sorted({layer for layer, _ in halves})
    if not names or any((name, half) not in halves for name in names for half in "AB"):
        raise SavingError(
            f"{folder} is not a complete LoRA: layers or parts of layers are missing. Choose another LoRA."
        )
    layers: dict[str, LayerDelta] = {}
    for layer in names:
        down, rank = halves[layer, "A"], len(halves[layer, "A"])
        # PEFT's scaling: alpha of the layer's pattern, else of the LoRA, by the rank or, with rsLoRA, its root.
        patterns = (config.get("alpha_pattern") or {}).items()
        matching = (alpha for pattern, alpha in patterns if re.match(rf"(.*\.)?({pattern})$", layer))
        alpha = float(next(matching, config.get("lora_alpha", rank)))
        strength = alpha / (math.sqrt(rank) if config.get("use_rslora") else rank)
        layers[layer] = LayerDelta(down, halves[layer, "B"], strength)
    return layers


def _examples(names: list[str]) -> str:
    first = names[0].removeprefix(PREFIX)
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _gguf_tensors(layers: Mapping[str, LayerDelta], base: BaseModelInfo, lora_name: str) -> tuple[Tensors, float]:
    """Tensors under llama.cpp's names, and the file's single alpha, which the first layer sets."""
    import gguf

    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    if base.architecture not in architectures:
        raise ModelError(
            f"The installed gguf package is too old for {base.name} ({base.architecture}). Update it: pip "
            "install --upgrade gguf"
        )
    # llama.cpp's own table, so that a new architecture needs no names of ours.
    name_map = gguf.get_tensor_name_map(architectures[base.architecture], base.layers)
    names = {layer: name_map.get_name(layer.replace("language_model.", "")) for layer in layers}
    # llama.cpp puts a LoRA on tied embeddings on the head too, which PEFT does not.
    absent = (None, *IGNORED_TENSORS.get(base.architecture, ()), *([EMBEDDINGS, "output"] if base.tied else []))
    if missing := [layer for layer in layers if names[layer] in absent]:
        raise SavingError(
            f"The LoRA {lora_name!r} can't be exported as GGUF: in llama.cpp, {base.architecture} has "
            f"no separate tensor for {_examples(missing)}. {MERGE_HINT}{ATTENTION_ONLY_HINT}"
        )
    alphas = {name: layer.strength * len(layer.down) for name, layer in layers.items()}
    alpha = next(filter(None, alphas.values()), 1.0)
    tensors: dict[str, Matrix] = {}
    for name, layer in layers.items():
        down = _reordered(name, layer.down.T, base, COLUMN_ORDERS)
        tensors[f"{names[name]}.weight.lora_a"] = down if names[name] == EMBEDDINGS else down.T
        up = _reordered(name, layer.up, base, ROW_ORDERS)
        # llama.cpp's strength of a layer is alpha / rank: the factor makes up for a layer with another alpha.
        tensors[f"{names[name]}.weight.lora_b"] = up * np.float32(alphas[name] / alpha)
    return tensors, alpha


def _reordered(layer: str, rows: Matrix, base: BaseModelInfo, orders: Mapping[str, RowOrders]) -> Matrix:
    order = orders.get(base.architecture, {}).get(layer.rpartition(".")[2])
    if order is None:
        return rows
    try:
        return np.ascontiguousarray(order(rows, base))
    except ValueError as error:
        raise SavingError(
            f"The LoRA does not fit {base.name}: the {len(rows)} rows of {layer} do not fit "
            f"{base.heads} heads and {base.key_heads} key-value heads. Enter the LoRA's base model (--model)."
        ) from error


# The models whose answers were compared with llama.cpp's (docs/engine.md, 'A LoRA in llama.cpp'): those that have
# the same name there, then `model_type` in config.json -> `general.architecture` in GGUF.
SAME_NAME = """
    llama granite smollm3 arcee olmo olmo2 qwen2 qwen3 lfm2 gemma gemma2 gemma3 gemma4 phi3 gpt2 bloom falcon
    starcoder2 stablelm cohere2 glm4 nemotron exaone4 seed_oss ernie4_5 apertus
"""
GGUF_ARCHITECTURES: Mapping[str, str] = {
    **{name: name for name in SAME_NAME.split()},
    **dict.fromkeys(("mistral", "mixtral"), "llama"),
    **dict.fromkeys(("qwen3_5", "qwen3_5_text"), "qwen35"),
    **dict.fromkeys(("qwen3_5_moe", "qwen3_5_moe_text"), "qwen35moe"),
    "qwen2_moe": "qwen2moe",
    "qwen3_moe": "qwen3moe",
    "ministral3": "mistral3",
    "gpt_oss": "gpt-oss",
    "gemma3_text": "gemma3",
    "gemma4_text": "gemma4",
    "phi": "phi2",
    "gpt_neox": "gptneox",
    "cohere": "command-r",
    "hunyuan_v1_dense": "hunyuan-dense",
}


class BaseModelInfo(NamedTuple):
    """What an export needs to know of the base model; no weights."""

    name: str
    architecture: str
    layers: int
    heads: int
    key_heads: int
    tied: bool  # head and embeddings share one tensor
    # Of linear attention: the number of key and value heads, and the size of a key; 0 without it.
    linear_keys: int
    linear_values: int
    linear_key_size: int


# Reordering functions by the last part of a layer's name.
RowOrders: TypeAlias = Mapping[str, Callable[[Matrix, BaseModelInfo], Matrix]]


# Rows in the wrong order raise no error, the text is only worse; docs/engine.md says how these were compared.
def interleave_rotary_halves(rows: Matrix, heads: int) -> Matrix:
    """Put the two rows of each rotary pair next to each other; transformers keeps them in the halves of a head."""
    # (head, half, pair) becomes (head, pair, half).
    return rows.reshape(heads, 2, -1, rows.shape[1]).swapaxes(1, 2).reshape(rows.shape)


def split_fused_qkv(rows: Matrix, base: BaseModelInfo) -> Matrix:
    """All queries, then all keys, then all values; transformers groups them by key head."""
    # A group: the queries of one key head, then its key and its value.
    groups = rows.reshape(base.key_heads, base.heads // base.key_heads + 2, -1, rows.shape[1])
    queries, keys, values = groups[:, :-2], groups[:, -2], groups[:, -1]
    return np.concatenate([part.reshape(-1, rows.shape[1]) for part in (queries, keys, values)])


def group_by_value_index(rows: Matrix, base: BaseModelInfo) -> Matrix:
    """First value head of every key head, then the second of every one; transformers groups them by key head."""
    values_per_key = base.linear_values // base.linear_keys
    return rows.reshape(base.linear_keys, values_per_key, -1, rows.shape[1]).swapaxes(0, 1).reshape(rows.shape)


def reorder_values(rows: Matrix, base: BaseModelInfo) -> Matrix:
    """Reorder only the values, which follow the queries and keys."""
    value_start = 2 * base.linear_keys * base.linear_key_size
    return np.concatenate([rows[:value_start], group_by_value_index(rows[value_start:], base)])


ROTARY_ORDERS: RowOrders = {
    "q_proj": lambda rows, base: interleave_rotary_halves(rows, base.heads),
    "k_proj": lambda rows, base: interleave_rotary_halves(rows, base.key_heads),
}
LINEAR_ATTENTION_ORDERS: RowOrders = {
    "in_proj_qkv": reorder_values,
    **dict.fromkeys(("in_proj_z", "in_proj_a", "in_proj_b"), group_by_value_index),
}
FUSED_QKV_ORDERS: RowOrders = {"query_key_value": split_fused_qkv}
LINEAR_ATTENTION_OUT_ORDERS: RowOrders = {"out_proj": group_by_value_index}
# Layers, by architecture, whose rows are ordered differently than in transformers.
ROW_ORDERS: Mapping[str, RowOrders] = {
    **dict.fromkeys(("llama", "mistral3", "granite", "smollm3", "arcee", "olmo"), ROTARY_ORDERS),
    **dict.fromkeys(("gptneox", "bloom", "falcon"), FUSED_QKV_ORDERS),
    **dict.fromkeys(("qwen35", "qwen35moe"), LINEAR_ATTENTION_ORDERS),
}
# The same for columns, which are passed as rows.
COLUMN_ORDERS: Mapping[str, RowOrders] = dict.fromkeys(("qwen35", "qwen35moe"), LINEAR_ATTENTION_OUT_ORDERS)
# Tensors for which llama.cpp reads a LoRA and then ignores it.
IGNORED_TENSORS: Mapping[str, tuple[str, ...]] = {"gemma4": ("per_layer_model_proj",)}


def read_base_model_info(model: Path) -> BaseModelInfo:
    """Read the base model's description from a folder with a config.json, or from a GGUF file."""

    def number(value: object) -> int:
        return value if isinstance(value, int) else 0  # some list a value per layer, which no row order uses

    if model.is_file():
        try:
            fields, tensor_names = gguf_header.read_header(model), gguf_header.read_tensors(model).keys()
        except (OSError, ValueError) as error:
            raise ModelError(
                f"{model} can't be read as a GGUF file: {error}. Choose another file (--model)."
            ) from error
        name, architecture = str(fields.get("general.name") or model.stem), str(fields.get("general.architecture"))
        tied = "output.weight" not in tensor_names
        keys = ("block_count", *HEAD_KEYS.values())
        layers, heads, key_heads, *linear = (number(fields.get(f"{architecture}.{key}")) for key in keys)
    else:
        config = read_json(model / "config.json", {})
        text = config.get("text_config") or config
        name, model_type = model.resolve().name, str(text.get("model_type"))
        architecture = GGUF_ARCHITECTURES.get(model_type, model_type)
        tied = bool(config.get("tie_word_embeddings", text.get("tie_word_embeddings", True)))
        layers = number(text.get("num_hidden_layers", text.get("n_layer")))
        heads = number(text.get("num_attention_heads", text.get("n_head")))
        key_heads = number(text.get("num_key_value_heads", text.get("num_kv_heads")))
        if text.get("multi_query") and not text.get("new_decoder_architecture"):  # the first Falcon models
            key_heads = 1
        linear_keys = ("linear_num_key_heads", "linear_num_value_heads", "linear_key_head_dim")
        linear = [number(text.get(key)) for key in linear_keys]
    if architecture not in GGUF_ARCHITECTURES.values():
        raise ModelError(
            f"{name} has the architecture {architecture!r}, whose LoRAs can't be exported as GGUF. {MERGE_HINT}"
        )
    return BaseModelInfo(name, architecture, layers, heads, key_heads or heads, tied, *linear)
