"""Layers that work in fewer passes over the memory, wherever they are known to give the same.

A model's own source decides what its layers do. So each kind is tried on a few numbers, with stand-ins for
its weights, and only what gives the same is replaced; the rest stays as it is.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from types import SimpleNamespace
from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from peft.tuners.lora import LoraLayer

from .fused_ops import Gate, Norm, Rotation, WithLora

SMALL, CLOSE = 1e-3, 1e-5
TURN = "apply_rotary_pos_emb"
PLAIN = frozenset({"Linear", "Linear4bit", "Linear8bitLt"})
"""PEFT's layers around one product; others (embeddings, experts, convolutions) are more."""


@contextmanager
def fewer_passes(base: Any) -> Iterator[None]:
    """Inside, the base's gates, norms and rotations work so."""
    source = vars(sys.modules[type(base).__module__])
    turn = source.get(TURN)
    # A layer that is spread over several cards has a forward of its own already.
    modules = [m for m in base.modules() if "forward" not in vars(m)]
    known = [(m, _gated) for m in modules if is_gate(m)] + [(m, _normed) for m in modules if is_norm(m)]
    try:
        if turn is not None and turns_the_same(turn):
            source[TURN] = partial(_turned, turn)
        for module, way in known:
            module.forward = partial(way, module, module.forward)
        yield
    finally:
        for module, _ in known:
            vars(module).pop("forward", None)
        if turn is not None:
            source[TURN] = turn


def loras_in_fewer_passes(model: torch.nn.Module) -> None:
    """The same for the LoRA in a model, as long as it is in it."""
    for layer in model.modules():
        if isinstance(layer, LoraLayer) and type(layer).__name__ in PLAIN and not layer.lora_variant:
            layer.forward = partial(_adapted, layer, layer.forward)


def is_gate(module: Any) -> bool:
    """Whether it does no more than down(silu(gate(x)) * up(x))."""
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return False
    stand_in = SimpleNamespace(
        gate_proj=lambda x: x + 1, up_proj=lambda x: x - 1, down_proj=lambda x: x * 2, act_fn=module.act_fn
    )
    some = _numbers(2, 8)
    return _same(lambda: type(module).forward(stand_in, some), lambda: F.silu(some + 1) * (some - 1) * 2)


def is_norm(module: Any) -> bool:
    """Whether it divides by the root of the mean square and multiplies by its weight."""
    if _small(module) is None or getattr(getattr(module, "weight", None), "dim", int)() != 1:
        return False
    some, weight = _numbers(2, 8), _numbers(8)
    stand_in = SimpleNamespace(weight=weight, variance_epsilon=SMALL, eps=SMALL)
    return _same(lambda: type(module).forward(stand_in, some), lambda: Norm.apply(some, weight, SMALL))


def turns_the_same(function: Callable[..., Any]) -> bool:
    """Whether this function of the model's source turns queries and keys as `Rotation` does."""
    rows, cosine, sine = _numbers(1, 2, 3, 8), _numbers(1, 3, 8), _numbers(1, 3, 8)
    right = partial(_turned, function, rows, rows[:, :1], cosine, sine)
    return _same(lambda: torch.cat(function(rows, rows[:, :1], cosine, sine), 1), lambda: torch.cat(right(), 1))


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _same(own: Callable[[], Any], ours: Callable[[], torch.Tensor]) -> bool:
    with torch.no_grad():
        try:
            found = own()
        except Exception:  # noqa: BLE001 - any layer of any model is asked; what it cannot take is not known
            return False
        right = ours()
    return (
        isinstance(found, torch.Tensor)
        and found.shape == right.shape
        and bool(((found - right).abs() <= CLOSE * (1 + right.abs())).all())
    )


def _small(module: Any) -> float | None:
    found: float | None = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return found


def _gated(module: Any, own: Callable[..., Any], x: torch.Tensor, *more: Any, **by: Any) -> Any:
    if more or by:
        return own(x, *more, **by)
    return module.down_proj(Gate.apply(module.gate_proj(x), module.up_proj(x)))


def _normed(module: Any, own: Callable[..., Any], x: torch.Tensor, *more: Any, **by: Any) -> Any:
    """Half precision goes the library's way, which rounds between its steps."""
    kinds = {x.dtype, module.weight.dtype}
    if more or by or kinds != {torch.float32} or module.weight.requires_grad:
        return own(x, *more, **by)
    return Norm.apply(x, module.weight, _small(module))


def _turned(
    own: Callable[..., Any],
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *more: Any,
    **by: Any,
) -> Any:
    """Where only a part of each row is turned, or along other dimensions, the model's own function does it."""
    if more or by or cos.shape[-1] != q.shape[-1] or cos.dtype != q.dtype:
        return own(q, k, cos, sin, *more, **by)
    cos, sin = cos[:, None], sin[:, None]
    return Rotation.apply(q, cos, sin), Rotation.apply(k, cos, sin)


def _adapted(layer: Any, own: Callable[..., Any], x: torch.Tensor, *more: Any, **by: Any) -> Any:
    """With one LoRA that is at work; any other case is PEFT's."""
    active = [name for name in layer.active_adapters if name in layer.lora_A]
    if more or by or layer.disable_adapters or layer.merged or len(active) != 1 or layer.lora_bias[active[0]]:
        return own(x, *more, **by)
    (name,) = active
    given, rows = layer.base_layer(x), layer.lora_dropout[name](x)
    flat = (tensor.reshape(-1, tensor.shape[-1]) for tensor in (given, rows))
    down, up = layer.lora_A[name].weight, layer.lora_B[name].weight
    # Given its shape out here: some models change what a layer gave in place.
    return WithLora.apply(*flat, down, up, layer.scaling[name]).view(given.shape)
