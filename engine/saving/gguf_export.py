"""Export a LoRA as a GGUF file for llama.cpp, without reading any weights of the model."""

from __future__ import annotations

import math
import re
import sys
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np

from ...core.engine import GgufRequest
from ...core.errors import ModelError, SavingError
from ...core.files import atomic_write, read_json, write_error_reason
from ...core.host import Host
from ...records.folder import choose_output, run_folder_of
from ...train_utils import checkpoint_step
from ..lora import lora_folder, read_weights
from .gguf_row_order import (
    COLUMN_ORDERS,
    IGNORED_TENSORS,
    ROW_ORDERS,
    BaseModelInfo,
    Matrix,
    RowOrders,
    read_base_model_info,
)

CONFIG = "adapter_config.json"
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
Tensors = Mapping[str, Matrix]


@dataclass(frozen=True)
class LayerDelta:
    """Delta of one layer: strength x up x down."""

    down: Matrix
    up: Matrix
    strength: float


def export_gguf(request: GgufRequest, host: Host) -> Path:
    """Export the LoRA to a GGUF file; a file under the default name in the LoRA's folder is overwritten."""
    if find_spec("gguf") is None:
        raise ModelError(f"Export needs the gguf package. Install it: {sys.executable} -m pip install gguf")
    folder, name = lora_folder(request.lora, host).absolute(), str(request.lora)
    out = default_path(folder)
    if request.out:
        out = choose_output(request.out, host.folders, own=out.parent)
        if out.exists():
            raise SavingError(f"{out} already exists. Delete it, or choose another name.")
    config = read_json(folder / CONFIG, {})
    if not config:
        raise SavingError(f"{folder} has no LoRA ({CONFIG} is missing or damaged). Choose another LoRA.")
    base = read_base_model_info(_find_model(request, config, host))
    layers = _load_layers(folder, config, name)
    tensors, alpha = _gguf_tensors(layers, base, name)
    _write(tensors, alpha, base, folder, out)
    return out


def default_path(folder: Path) -> Path:
    """Default path: in the folder of the run, named after the LoRA or checkpoint."""
    if checkpoint_step(folder.name) is None:
        return folder / f"{folder.name}.gguf"
    run = run_folder_of(folder)
    return run / f"{run.name}-{folder.name}.gguf"


def _find_model(request: GgufRequest, config: Mapping[str, Any], host: Host) -> Path:
    """Folder with the model's config, or the model's GGUF file."""
    name = request.model or str(config.get("base_model_name_or_path") or "")
    models = host.folders.models
    candidates = (models / name, Path(name), models / Path(name.replace("\\", "/")).name) if name else ()
    for path in candidates:
        if (path.suffix == ".gguf" and path.is_file()) or (path / "config.json").is_file():
            return path
    if request.model:
        raise ModelError(
            f"There is no model {name!r} in {models}, and no folder or GGUF file with that path. Choose another "
            "model (--model)."
        )
    base = f"The LoRA's base model, {name!r}," if name else "The LoRA's base model"
    raise ModelError(
        f"{base} was not found, and the export needs its config. Enter the model's folder or its GGUF file "
        "(--model)."
    )


def _load_layers(folder: Path, config: Mapping[str, Any], lora_name: str) -> dict[str, LayerDelta]:
    """Layers by their names in transformers; SavingError with all problems if GGUF cannot hold them."""
    weights: Tensors = {key: tensor.float().numpy() for key, tensor in read_weights(folder).items()}
    if problems := list(_problems(weights, config)):
        start = f"The LoRA {lora_name!r} can't be exported as GGUF: "
        remedy = MERGE_HINT + (ATTENTION_ONLY_HINT if any("experts" in name for name in weights) else "")
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


def _problems(weights: Tensors, config: Mapping[str, Any]) -> Iterator[str]:
    peft_type = str(config.get("peft_type", "LORA"))
    extra = [name for name in weights if not (LORA_KEY.match(name) or BASE_LAYER_KEY.search(name))]
    if peft_type != "LORA":
        yield f"its type is {peft_type}, but llama.cpp supports only LoRAs"
    elif config.get("use_dora") or any("lora_magnitude_vector" in name for name in extra):
        yield "it was trained with DoRA, which llama.cpp does not support"
    elif config.get("bias", "none") != "none" or any(name.endswith(".bias") for name in extra):
        yield "it has biases, which the GGUF format does not support"
    elif extra:
        yield f"it contains weights besides those of the LoRA, for example from Train Head ({_examples(extra)})"
    if options := [option for option in UNSUPPORTED_OPTIONS if config.get(option)]:
        yield f"it uses the option {options[0]}, which llama.cpp does not support"
    if nonlinear := [name for name, weight in weights.items() if LORA_KEY.match(name) and weight.ndim != 2]:
        yield f"it changes layers that are not linear ({_examples(nonlinear)})"
    if experts := [name for name in weights if "experts" in name]:
        yield f"it changes experts, which llama.cpp stores in one tensor ({_examples(experts)})"


def _examples(names: list[str]) -> str:
    first = names[0].removeprefix(PREFIX)
    return f"{first} and {len(names) - 1} more" if len(names) > 1 else first


def _gguf_tensors(layers: Mapping[str, LayerDelta], base: BaseModelInfo, lora_name: str) -> tuple[Tensors, float]:
    """Tensors under llama.cpp's names, and the file's single alpha.

    llama.cpp computes the strength of a layer as alpha / rank. The first layer sets alpha; a layer with another
    strength has its `up` scaled to make up the difference.
    """
    names = _gguf_names(layers, base)
    if missing := [layer for layer in layers if layer not in names]:
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
        # The factor makes up for a layer whose alpha / rank differs from the file's single alpha / rank.
        tensors[f"{names[name]}.weight.lora_b"] = up * np.float32(alphas[name] / alpha)
    return tensors, alpha


def _gguf_names(layers: Iterable[str], base: BaseModelInfo) -> dict[str, str]:
    """llama.cpp's names of the layers that it has; it puts a LoRA on tied embeddings on the head too."""
    import gguf

    architectures = {name: architecture for architecture, name in gguf.MODEL_ARCH_NAMES.items()}
    if base.architecture not in architectures:
        raise ModelError(
            f"The installed gguf package is too old for {base.name} ({base.architecture}). Update it: pip "
            "install --upgrade gguf"
        )
    # llama.cpp's own table, so that a new architecture needs no names of ours.
    name_map = gguf.get_tensor_name_map(architectures[base.architecture], base.layers)
    # llama.cpp puts a LoRA on tied embeddings on the head too, which PEFT does not.
    absent = (*IGNORED_TENSORS.get(base.architecture, ()), *([EMBEDDINGS, "output"] if base.tied else []))
    names = {layer: name_map.get_name(layer.replace("language_model.", "")) for layer in layers}
    return {layer: name for layer, name in names.items() if name and name not in absent}


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


def _write(tensors: Tensors, alpha: float, base: BaseModelInfo, folder: Path, out: Path) -> None:
    import gguf

    try:
        with atomic_write(out) as temporary:
            writer = gguf.GGUFWriter(temporary, base.architecture)
            try:
                writer.add_type(gguf.GGUFType.ADAPTER)
                writer.add_string(gguf.Keys.Adapter.TYPE, "lora")
                writer.add_float32(gguf.Keys.Adapter.LORA_ALPHA, alpha)
                writer.add_name(default_path(folder).stem)
                writer.add_base_model_count(1)
                writer.add_base_model_name(0, base.name)
                for name, tensor in sorted(tensors.items()):
                    writer.add_tensor(name, np.ascontiguousarray(tensor))
                writer.write_header_to_file()
                writer.write_kv_data_to_file()
                writer.write_tensors_to_file()
            finally:
                writer.close()
    except OSError as error:
        raise SavingError(f"{out} can't be written: {write_error_reason(error, out.parent)}.") from error
