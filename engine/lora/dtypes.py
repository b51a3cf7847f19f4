"""Dtype that a model computes in, and autocast to it."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import AbstractContextManager, nullcontext
from typing import Any

import torch

HALF_PRECISION = ("bfloat16", "float16")


def model_device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def compute_dtype(model: Any) -> str:
    """Compute dtype of a model: 'bfloat16', 'float16' or 'float32'."""
    quantized = getattr(model.config, "quantization_config", None)
    quantized_dtype = (
        getattr(quantized, "bnb_4bit_compute_dtype", None) if getattr(model, "is_loaded_in_4bit", False) else None
    )
    dtype = str(quantized_dtype or model.dtype).removeprefix("torch.")
    if dtype == "float16" and model_device(model).type == "cpu":
        return "float32"  # the CPU has no scaled float16; the LoRA itself is float32 anyway
    return dtype if dtype in HALF_PRECISION else "float32"


def autocast_model(model: Any) -> AbstractContextManager[Any]:
    """Autocast as in training, so that float32 parts and parts in the model's own dtype work together."""
    dtype = compute_dtype(model)
    if dtype not in HALF_PRECISION:
        return nullcontext()
    context: AbstractContextManager[Any] = torch.autocast(model_device(model).type, dtype=getattr(torch, dtype))
    return context


def slow_dtype_advice(model: Any) -> Iterator[str]:
    """GPUs before RTX 30 only emulate bfloat16."""
    if model_device(model).type != "cuda" or compute_dtype(model) != "bfloat16":
        return
    if not torch.cuda.is_bf16_supported(including_emulation=False):
        yield (
            "This GPU emulates bfloat16 with float32, which is slow. Load the model in float16, and check that "
            "its replies are still good. A few models do not work in float16, because their values overflow."
        )


def is_tf32_enabled() -> bool:
    """Whether float32 matrix products on a GPU use TF32; read from torch's newer setting if it exists."""
    matmul = torch.backends.cuda.matmul
    return bool(matmul.fp32_precision == "tf32" if hasattr(matmul, "fp32_precision") else matmul.allow_tf32)
