"""A borrowed model: the dtype that it computes in, and guards that restore its flags, modes and random states."""

from __future__ import annotations

import os
import random
import sys
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch

from .peft_private import LEFTOVER_ATTRIBUTES

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


@contextmanager
def preserve_model_state(model: torch.nn.Module) -> Iterator[None]:
    """Restore the model's flags and modes, the random states and the environment on exit."""
    flags, process = _ModelFlags.of(model), _ProcessState.now()
    try:
        yield
    finally:
        flags.restore(model)
        process.restore()


@contextmanager
def preserve_rng() -> Iterator[None]:
    """Restore the random states on exit."""
    process = _ProcessState.now()
    try:
        yield
    finally:
        process.restore()


@dataclass(frozen=True)
class _ModelFlags:
    """`requires_grad` of all parameters, modes of all modules, and flags of model and config."""

    gradients: list[tuple[torch.nn.Parameter, bool]]
    modes: list[tuple[torch.nn.Module, bool]]
    checkpointing: list[tuple[torch.nn.Module, bool]]
    hooks: list[tuple[torch.nn.Module, frozenset[int]]]
    use_cache: Any
    attributes: dict[str, Any]

    @classmethod
    def of(cls, model: torch.nn.Module) -> _ModelFlags:
        modules = list(model.modules())
        return cls(
            gradients=[(p, p.requires_grad) for p in model.parameters()],
            modes=[(m, m.training) for m in modules],
            checkpointing=[(m, m.gradient_checkpointing) for m in modules if hasattr(m, "gradient_checkpointing")],
            hooks=[(m, frozenset(m._forward_hooks)) for m in modules],
            use_cache=getattr(model.config, "use_cache", None),
            attributes={k: v for k, v in vars(model).items() if k in LEFTOVER_ATTRIBUTES},
        )

    def restore(self, model: torch.nn.Module) -> None:
        self.resume_training(model)
        for module, enabled in self.checkpointing:
            if not enabled:
                vars(module).pop("_gradient_checkpointing_func", None)
        # PEFT and the Trainer each leave a hook that makes the embeddings' output require gradients.
        for module, existing in self.hooks:
            for number in module._forward_hooks.keys() - existing:
                del module._forward_hooks[number]
        for parameter, _ in self.gradients:
            parameter.grad = None
        for name in LEFTOVER_ATTRIBUTES:
            if name in self.attributes:
                setattr(model, name, self.attributes[name])
            elif name in vars(model):
                delattr(model, name)

    def resume_training(self, model: torch.nn.Module) -> None:
        """Restore the flags for a training run that continues: gradients and hooks stay."""
        for module, enabled in self.checkpointing:
            module.gradient_checkpointing = enabled
        for parameter, trained in self.gradients:
            if parameter.requires_grad != trained:
                parameter.requires_grad_(trained)
        for module, mode in self.modes:
            module.training = mode
        if getattr(model.config, "use_cache", None) != self.use_cache:
            model.config.use_cache = self.use_cache


@dataclass(frozen=True)
class _ProcessState:
    """Random states, which the host's chat uses too, and the environment variables of accelerate."""

    python: Any
    numpy: Any
    torch: torch.Tensor
    cards: list[torch.Tensor]
    environment: dict[str, str]

    @classmethod
    def now(cls) -> _ProcessState:
        return cls(
            python=random.getstate(),
            numpy=np.random.get_state(),
            torch=torch.get_rng_state(),
            cards=torch.cuda.get_rng_state_all() if torch.cuda.is_available() else [],
            environment=_accelerate_environment(),
        )

    def restore(self) -> None:
        random.setstate(self.python)
        np.random.set_state(self.numpy)
        torch.set_rng_state(self.torch)
        if self.cards:
            torch.cuda.set_rng_state_all(self.cards)
        for name in _accelerate_environment().keys() - self.environment.keys():
            del os.environ[name]
        os.environ.update(self.environment)


@contextmanager
def restore_methods(base: Any) -> Iterator[None]:
    """Restore replaced methods and classes of the model's modules, and functions of its source module, on exit."""
    module_globals = vars(sys.modules[type(base).__module__])
    modules = [(vars(m), type(m), m) for m in base.modules()]
    saved = [{k: v for k, v in attributes.items() if k not in _TORCH_ATTRIBUTES} for attributes, _, _ in modules]
    saved_globals = dict(module_globals)
    try:
        yield
    finally:
        _restore_dict(module_globals, saved_globals)
        for (attributes, cls, module), old in zip(modules, saved, strict=True):
            _restore_dict(attributes, old)
            if type(module) is not cls:
                module.__class__ = cls


# Attributes that torch keeps on every module, such as parameters and hooks; they are restored elsewhere.
_TORCH_ATTRIBUTES = frozenset(vars(torch.nn.Module()))


def _restore_dict(current: dict[str, Any], old: dict[str, Any]) -> None:
    for name in current.keys() - old.keys() - _TORCH_ATTRIBUTES:
        del current[name]
    current.update(old)


@contextmanager
def pause_training_mode(model: torch.nn.Module) -> Iterator[None]:
    """Let a model in training generate; on exit training continues as if nothing had happened."""
    flags, process = _ModelFlags.of(model), _ProcessState.now()
    for module, _ in flags.checkpointing:
        module.gradient_checkpointing = False
    try:
        yield
    finally:
        flags.resume_training(model)
        process.restore()


def _accelerate_environment() -> dict[str, str]:
    return {k: v for k, v in os.environ.items() if k.startswith("ACCELERATE_")}
