"""A GGUF file as the model: its layers keep their blocks, and unpack them in each forward and backward pass.

transformers' own packed layers can't be trained and exist for three architectures. Its older loader knows 22, but
unpacks all of them: a file of 1.1 GB (1.7 billion weights in Q4_K) becomes 6.9 GB in float32. Names and changes of
values come from that loader here, and only the unpacking is put off, to `dequantize` of the library.
"""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from accelerate import init_empty_weights
from torch.autograd.function import once_differentiable
from transformers import AutoModelForCausalLM

from ...core.errors import ModelError
from ...core.gguf_header import PACKED_TYPES, read_header
from ...train_utils import size

# Weights that are unpacked at a time: each intermediate result of a piece fits into the cache of a core, and into
# little of the memory of a GPU, where each operation costs the start of a kernel.
PIECE, GPU_PIECE = 2**20, 2**26
# Layers of Mamba that its code reads the weights of, without calling the layer.
READ_DIRECTLY = {"mamba": ("x_proj", "dt_proj", "out_proj", "lm_head", "embeddings")}
# Of the free memory, the part that unpacked layers may take while a model generates.
FREE_SHARE = 0.7
# Unpacked layers whose total size is worth a sentence.
NOTED_BYTES = 100e6
Unpack = Callable[[torch.Tensor, int, torch.dtype], torch.Tensor]


class GgufWeights(NamedTuple):
    """How a model holds the weights of its file: the most frequent type, and a sentence on what is unpacked."""

    kind: str
    note: str


class PackedLinear(torch.nn.Linear):  # type: ignore[misc]
    """A frozen linear layer whose weight is a row of GGUF blocks (uint8) for each output."""

    ggml_type: int
    compute_dtype: torch.dtype
    unpacked: torch.Tensor | None = None

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        if self.unpacked is not None:
            return F.linear(rows, self.unpacked, self.bias)
        result: torch.Tensor = _PackedProduct.apply(
            rows, self.weight, self.bias, self.ggml_type, self.compute_dtype
        )
        return result

    @property
    def W_q(self) -> torch.Tensor:  # noqa: N802 - PEFT calls `dequantize` of a layer that has it, for DoRA
        weight: torch.Tensor = self.weight
        return weight

    def dequantize(self) -> torch.Tensor:
        return unpack(self.weight, self.ggml_type, self.compute_dtype)


class PackedEmbedding(torch.nn.Embedding):  # type: ignore[misc]
    """Frozen embeddings that unpack only the rows of the tokens; also Gemma's, which scales them."""

    ggml_type: int
    compute_dtype: torch.dtype

    def forward(self, ids: torch.Tensor) -> torch.Tensor:
        blocks = F.embedding(ids, self.weight)
        rows = unpack(blocks.reshape(-1, blocks.shape[-1]), self.ggml_type, self.compute_dtype)
        rows = rows.view(*ids.shape, self.embedding_dim)
        scale = getattr(self, "embed_scale", None)
        return rows if scale is None else rows * scale.to(rows.dtype)


class _PackedProduct(torch.autograd.Function):  # type: ignore[misc]
    """rows @ weight.T + bias, where only the blocks of the weight are kept for the backward pass."""

    @staticmethod
    def forward(
        ctx: Any,
        rows: torch.Tensor,
        blocks: torch.Tensor,
        bias: torch.Tensor | None,
        ggml_type: int,
        dtype: torch.dtype,
    ) -> torch.Tensor:
        ctx.save_for_backward(blocks)
        ctx.ggml_type, ctx.dtype, ctx.rows_dtype = ggml_type, dtype, rows.dtype
        ctx.bias_dtype = None if bias is None else bias.dtype
        return F.linear(rows, unpack(blocks, ggml_type, dtype, reuse=True), bias)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        (blocks,) = ctx.saved_tensors
        d_rows = d_bias = None
        if ctx.needs_input_grad[0]:
            weight = unpack(blocks, ctx.ggml_type, ctx.dtype, reuse=True)
            d_rows = (grad.to(ctx.dtype) @ weight).to(ctx.rows_dtype)
        if ctx.needs_input_grad[2]:
            d_bias = grad.flatten(0, -2).sum(0).to(ctx.bias_dtype)
        return d_rows, None, d_bias, None, None


class _Scratch(threading.local):
    """The memory that a thread unpacks into: new memory for each layer leaves holes between the activations."""

    numbers: torch.Tensor | None = None

    def take(self, count: int, dtype: torch.dtype) -> torch.Tensor:
        if self.numbers is None or self.numbers.dtype != dtype or len(self.numbers) < count:
            self.numbers = None
            with torch.inference_mode(False):  # else it could not be written to outside of that mode
                self.numbers = torch.empty(count, dtype=dtype)
        return self.numbers[:count]


_SCRATCH = _Scratch()


def unpack(blocks: torch.Tensor, ggml_type: int, dtype: torch.dtype, *, reuse: bool = False) -> torch.Tensor:
    """Unpack rows of blocks; with `reuse`, on a CPU, the result is valid until the next one of the thread.

    Some rows at a time, since the intermediate results need several times the memory.
    """
    from transformers.integrations.gguf.dequant import GGML_BLOCK

    elements, block_bytes = GGML_BLOCK[ggml_type]
    height, width = blocks.shape[0], blocks.shape[1] // block_bytes * elements
    piece = max(1, (GPU_PIECE if blocks.is_cuda else PIECE) // width)
    if reuse and blocks.device.type == "cpu" and not torch.compiler.is_compiling():
        weights = _SCRATCH.take(height * width, dtype).view(height, width)
    elif height <= piece:
        return _dequantize(blocks, ggml_type, dtype).view(height, width)
    else:
        weights = torch.empty(height, width, dtype=dtype, device=blocks.device)
    for start in range(0, height, piece):
        part = blocks[start : start + piece]
        weights[start : start + piece] = _dequantize(part, ggml_type, dtype).view(len(part), width)
    return weights


def _dequantize(blocks: torch.Tensor, ggml_type: int, dtype: torch.dtype) -> torch.Tensor:
    """On a GPU compiled into one kernel instead of some ten; plain where that fails, as without a C compiler."""
    from transformers.integrations.gguf.dequant import dequantize

    if blocks.is_cuda and not torch.compiler.is_compiling():
        if not _COMPILED:
            _COMPILED.append(torch.compile(dequantize, dynamic=True))
        try:
            if compiled := _COMPILED[0]:
                return compiled(blocks, ggml_type, dtype)
        except torch.OutOfMemoryError:
            raise  # the batch is split
        except Exception:  # noqa: BLE001 - compilers raise anything
            _COMPILED[0] = None
    return dequantize(blocks, ggml_type, dtype)


_COMPILED: list[Unpack | None] = []


def plain_weight(layer: Any) -> torch.Tensor:
    """The weight of a linear layer; that of a packed one is unpacked anew each time, forward and backward."""
    if not isinstance(layer, PackedLinear):
        weight: torch.Tensor = layer.weight
        return weight
    return layer.dequantize() if layer.unpacked is None else layer.unpacked


@contextmanager
def unpacked_to_generate(model: torch.nn.Module) -> Iterator[None]:
    """On a CPU, unpack the layers during an answer, if there is room: else each token unpacks them all."""
    layers = [m for m in model.modules() if isinstance(m, PackedLinear) and m.weight.device.type == "cpu"]
    needed = sum(layer.in_features * layer.out_features * layer.compute_dtype.itemsize for layer in layers)
    try:
        if needed < FREE_SHARE * psutil.virtual_memory().available:
            for layer in layers:
                layer.unpacked = layer.dequantize()
        yield
    finally:
        for layer in layers:
            layer.unpacked = None


def load_gguf(parts: Sequence[Path], config: Any, dtype: torch.dtype, device: Any, *, packed: bool) -> Any:
    """Load the model of a GGUF file in one or several parts; layers keep their blocks where `packed`."""
    from gguf import GGUFReader, dequantize
    from gguf.constants import GGMLQuantizationType
    from transformers.modeling_gguf_pytorch_utils import (
        TENSOR_PROCESSORS,
        TensorProcessor,
        get_gguf_hf_weights_map,
        load_gguf_checkpoint,
    )

    # Only the parameters have no memory: buffers, such as the frequencies of rotary embeddings, are computed.
    with init_empty_weights(include_buffers=False):
        model = AutoModelForCausalLM.from_config(config, dtype=dtype, trust_remote_code=False)
    architecture = read_header(parts[0])["general.architecture"]
    described = load_gguf_checkpoint(str(parts[0]))["config"]
    processor = TENSOR_PROCESSORS.get(architecture, TensorProcessor)(config=described)
    names = get_gguf_hf_weights_map(model, processor)
    modules = dict(model.named_modules())
    # The processors of mixtures of experts put their tensors, which come in halves, into `tensors` themselves.
    found: dict[str, Any] = {"tensors": {}}
    kinds, unpacked = Counter[str](), Counter[str]()
    for part in parts:
        for tensor in GGUFReader(str(part)).tensors:
            ggml_type, name = int(tensor.tensor_type), names.get(tensor.name, "")
            owner = modules.get(name.removesuffix(".weight")) if name.endswith(".weight") else None
            if packed and owner is not None and _can_be_packed(name, owner, ggml_type, config.model_type):
                height, width = int(tensor.shape[1]), int(tensor.shape[0])
                order = _row_order(processor, tensor.name, height, width)
                if order is not None:
                    # Read, not mapped: pages of a mapped file count as memory of the process beside the copy.
                    read = np.fromfile(part, np.uint8, int(tensor.n_bytes), offset=int(tensor.data_offset))
                    rows = read.reshape(height, -1)
                    rows = rows if np.array_equal(order, np.arange(height)) else rows[order]
                    blocks = torch.nn.Parameter(torch.from_numpy(rows).to(device), requires_grad=False)
                    _pack(owner, blocks, width, ggml_type, dtype)
                    kinds[GGMLQuantizationType(ggml_type).name] += rows.nbytes
                    continue
            values = dequantize(tensor.data, tensor.tensor_type)
            if packed and tensor.tensor_type.name not in ("F32", "F16", "BF16", "F64"):
                unpacked[tensor.tensor_type.name] += values.size * dtype.itemsize
            result = processor.process(
                weights=values, name=tensor.name, tensor_key_mapping=names, parsed_parameters=found
            )
            if result.name in names:
                found["tensors"][names[result.name]] = torch.from_numpy(np.copy(result.weights))
            for full_name in [key for key in found["tensors"] if "experts" not in key]:
                _assign(model, full_name, found["tensors"].pop(full_name), device)
    for full_name, value in found["tensors"].items():
        _assign(model, full_name, value, device)
    _tie_head(model)
    if missing := sorted(name for name, weight in model.named_parameters() if weight.is_meta):
        words = f"{len(missing)} of its weights are missing, such as {missing[0]}"
        raise ModelError(f"{words}. The file is incomplete, or made for another program. Download it again")
    model.to(device)
    if kinds:
        total, note = sum(unpacked.values()), ""
        if total >= NOTED_BYTES:
            which = f"Layers that can't be trained packed were unpacked ({', '.join(sorted(unpacked))})"
            note = f"{which}, which takes {size(total)} of memory."
        model.gguf_weights = GgufWeights(kinds.most_common(1)[0][0], note)
    return model


def _can_be_packed(name: str, layer: Any, ggml_type: int, model_type: str) -> bool:
    """Whether the layer is called as a whole: code that reads a weight would read blocks."""
    if ggml_type not in PACKED_TYPES or name.split(".")[-2] in READ_DIRECTLY.get(model_type, ()):
        return False
    kind = type(layer).__name__
    scaled = kind.endswith("ScaledWordEmbedding") and hasattr(layer, "embed_scale")
    return kind in ("Linear", "FalconLinear", "Conv1D", "Embedding") or scaled


def _row_order(processor: Any, name: str, height: int, width: int) -> Any:
    """For each row of a layer, the row of the file that holds it; None if transformers does more than move rows.

    It is given numbers in place of weights, each row with its own number. Blocks run along the rows, so packed
    rows can move. GPT-2's layers, which it transposes, are products with the rows as they stand in the file.
    """
    numbers = np.broadcast_to(np.arange(height, dtype=np.int32)[:, None], (height, width))
    options: dict[str, Any] = {"name": name, "tensor_key_mapping": {}, "parsed_parameters": {"tensors": {}}}
    try:
        narrow = numbers[:, :2]
        result = processor.process(weights=narrow, **options)
        numbers, width = narrow, 2
    except ValueError:  # that of BLOOM counts on the width
        result = processor.process(weights=numbers, **options)
    moved = result.weights
    if result.name is None:  # it stores the layer itself, unchanged: the head of GPT-2
        moved = numbers
    if moved is numbers:
        return np.arange(height)
    if moved.strides == numbers.strides[::-1]:
        moved = moved.T
    if moved.shape != (height, width):
        return None
    order = moved[:, 0]
    is_moved = np.array_equal(np.sort(order), numbers[:, 0]) and bool((moved == order[:, None]).all())
    return order if is_moved else None


def _pack(layer: Any, blocks: torch.nn.Parameter, width: int, ggml_type: int, dtype: torch.dtype) -> None:
    """Turn a layer in place into one with these blocks."""
    height = len(blocks)
    expected = {(height, width)} | ({(width, height)} if type(layer).__name__ == "Conv1D" else set())
    if tuple(layer.weight.shape) not in expected:
        raise ModelError(f"a layer of {height} x {width} weights should be {tuple(layer.weight.shape)}")
    is_embedding = isinstance(layer, torch.nn.Embedding)
    if not is_embedding:
        layer.in_features, layer.out_features = width, height
    layer.weight = blocks
    layer.__class__ = PackedEmbedding if is_embedding else PackedLinear
    layer.ggml_type, layer.compute_dtype = ggml_type, dtype


def _assign(model: Any, name: str, value: torch.Tensor, device: Any) -> None:
    """Put plain weights into the model, in the dtype that it has for them."""
    module, _, own = name.rpartition(".")
    owner = model.get_submodule(module)
    old = getattr(owner, own)
    if old.shape != value.shape:
        raise ModelError(f"{name} has the shape {tuple(value.shape)} instead of {tuple(old.shape)}")
    value = value.to(device, old.dtype)
    setattr(owner, own, torch.nn.Parameter(value) if isinstance(old, torch.nn.Parameter) else value)


def _tie_head(model: Any) -> None:
    """Share the weights of the embeddings with the head, packed or not."""
    head, embeddings = model.get_output_embeddings(), model.get_input_embeddings()
    if head is None or not getattr(model.config.get_text_config(), "tie_word_embeddings", False):
        return
    if isinstance(embeddings, PackedEmbedding):
        width, ggml_type, dtype = embeddings.embedding_dim, embeddings.ggml_type, embeddings.compute_dtype
        _pack(head, embeddings.weight, width, ggml_type, dtype)
    else:
        head.weight = embeddings.weight
