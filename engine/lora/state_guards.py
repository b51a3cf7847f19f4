"""A borrowed model: the dtype that it computes in, and guards that restore its flags, modes and random states."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from typing import Any, cast

import numpy as np
import torch

from .peft_private import LEFTOVER_ATTRIBUTES

HALF_PRECISION = ("bfloat16", "float16")


def model_device(model: torch.nn.Module) -> torch.device:
    return next(model.parameters()).device


def compute_dtype(model: Any) -> str:
    """Compute dtype of a model: 'bfloat16', 'float16' or 'float32'."""
    dtype = model.dtype
    if getattr(model, "is_loaded_in_4bit", False):
        quantized = getattr(model.config, "quantization_config", None)
        dtype = getattr(quantized, "bnb_4bit_compute_dtype", None) or dtype
    dtype = str(dtype).removeprefix("torch.")
    if dtype == "float16" and model_device(model).type == "cpu":
        return "float32"  # the CPU has no scaled float16; the LoRA itself is float32 anyway
    return dtype if dtype in HALF_PRECISION else "float32"


def autocast_model(model: Any) -> AbstractContextManager[Any]:
    """Autocast as in training, so that float32 parts and parts in the model's own dtype work together."""
    dtype = compute_dtype(model)
    if dtype not in HALF_PRECISION:
        return nullcontext()
    return cast("AbstractContextManager[Any]", torch.autocast(model_device(model).type, getattr(torch, dtype)))


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


@contextmanager
def preserve_model_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's flags and modes, the random states and the environment on exit."""
    # Only what is added is removed again: hooks of the host stay.
    hooks = [(module, frozenset(module._forward_hooks)) for module in model.modules()]
    attributes = {name: value for name, value in vars(model).items() if name in LEFTOVER_ATTRIBUTES}
    with preserve_rng():
        try:
            with _preserve_modes(model):
                yield
        finally:
            for module, existing in hooks:
                if not getattr(module, "gradient_checkpointing", True):
                    vars(module).pop("_gradient_checkpointing_func", None)
                # PEFT and the Trainer each leave a hook that makes the embeddings' output require gradients.
                for number in module._forward_hooks.keys() - existing:
                    del module._forward_hooks[number]
            for parameter in model.parameters():
                parameter.grad = None
            for name in LEFTOVER_ATTRIBUTES:
                vars(model).pop(name, None)
            vars(model).update(attributes)


@contextmanager
def pause_training_mode(model: torch.nn.Module) -> Iterator[None]:
    """Let a model in training generate; on exit training continues as if nothing had happened."""
    with preserve_rng(), _eval_mode(model):
        for module in model.modules():
            if hasattr(module, "gradient_checkpointing"):
                module.gradient_checkpointing = False
        yield


@contextmanager
def _preserve_modes(model: Any) -> Iterator[None]:
    """Restore `requires_grad` of all parameters, the modes of all modules, and the model's cache on exit."""
    gradients = [(parameter, parameter.requires_grad) for parameter in model.parameters()]
    names = ("training", "gradient_checkpointing")
    modes = [
        (each, name, getattr(each, name)) for each in model.modules() for name in names if hasattr(each, name)
    ]
    use_cache = getattr(model.config, "use_cache", None)
    try:
        yield
    finally:
        for parameter, trained in gradients:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, name, mode in modes:
            setattr(module, name, mode)
        if getattr(model.config, "use_cache", None) != use_cache:
            model.config.use_cache = use_cache


@contextmanager
def _eval_mode(model: torch.nn.Module) -> Iterator[None]:
    """Set the model to eval mode within this context, without dropout, and restore each module's mode."""
    with _preserve_modes(model):
        model.eval()
        for module in model.modules():
            if type(module).__name__ == "Linear4bit":
                module.training = True  # in eval mode, bitsandbytes repacks its weights permanently on some CPUs
        yield


@contextmanager
def evaluation_context(model: torch.nn.Module) -> Iterator[None]:
    """Evaluate within this context: no gradients, no dropout; module modes and random states are restored."""
    with torch.no_grad(), preserve_rng(), _eval_mode(model), autocast_model(model):
        yield


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the random states, which the host's chat uses too, and accelerate's environment on exit."""
    python, numpy = random.getstate(), np.random.get_state()
    cards = range(torch.cuda.device_count() if torch.cuda.is_available() else 0)  # counted without a driver, too
    variables = {name: value for name, value in os.environ.items() if name.startswith("ACCELERATE_")}
    try:
        with torch.random.fork_rng(cards, device_type="cuda"):
            yield
    finally:
        random.setstate(python)
        np.random.set_state(numpy)
        for name in [name for name in os.environ if name.startswith("ACCELERATE_")]:
            del os.environ[name]
        os.environ.update(variables)


# Attributes that torch keeps on every module, such as parameters and hooks; they are restored elsewhere.
_TORCH_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


@contextmanager
def restore_methods(base: Any) -> Iterator[None]:
    """Restore replaced methods and classes of the model's modules, and functions of its source module, on exit."""
    module_globals = vars(sys.modules[type(base).__module__])
    # Kernels replace functions both on modules and in the source file of the model.
    holders: list[dict[str, Any]] = [module_globals, *(vars(module) for module in base.modules())]
    saved = [{k: v for k, v in holder.items() if k not in _TORCH_ATTRIBUTES} for holder in holders]
    classes = [(module, type(module)) for module in base.modules()]
    try:
        yield
    finally:
        for holder, old in zip(holders, saved, strict=True):
            for name in holder.keys() - old.keys() - _TORCH_ATTRIBUTES:
                del holder[name]
            holder.update(old)
        for module, cls in classes:
            if type(module) is not cls:
                module.__class__ = cls
