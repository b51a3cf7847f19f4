"""Fused autograd functions for the elementwise parts of a layer, between its large matrix products.

As separate operations, each allocates and saves a tensor for the next. Here a gate saves two of its three tensors,
a rotary embedding and a norm allocate only their results, and a LoRA is added inside its second matrix product.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch.autograd.function import once_differentiable


class SiluMul(torch.autograd.Function):  # type: ignore[misc]
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(grad * up, gate), F.silu(gate).mul_(grad)


class RMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """RMSNorm with a frozen weight."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = norm.square_().div_(rows.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        return (rows * scale).mul_(weight)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rows, weight, scale = ctx.saved_tensors
        weighted = grad * weight
        projection = torch.linalg.vecdot(weighted, rows)[..., None] * scale.square() / -rows.shape[-1]
        return weighted.addcmul_(rows, projection).mul_(scale), None, None


def half_rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float | None) -> torch.Tensor:
    """RMSNorm of rows in half precision, rounded once before the weight; on a GPU, torch has one kernel for it."""
    with torch.autocast(rows.device.type, enabled=False):  # on a GPU, it would make the result float32
        return F.rms_norm(rows, rows.shape[-1:], None, eps) * weight


class RotaryEmbedding(torch.autograd.Function):  # type: ignore[misc]
    """Rotary position embedding, with the pairs in the two halves of a row."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        return _rotate(rows, cosine, sine)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _rotate(grad, cosine, sine.roll(sine.shape[-1] // 2, -1).neg_()), None, None


def _rotate(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    rotated, half = rows * cosine, rows.shape[-1] // 2
    rotated[..., :half].addcmul_(rows[..., half:], sine[..., :half], value=-1)
    rotated[..., half:].addcmul_(rows[..., :half], sine[..., half:])
    return rotated


class AddLora(torch.autograd.Function):  # type: ignore[misc]
    """output + strength * rows @ down.T @ up.T, for the output of a base layer."""

    @staticmethod
    def forward(
        ctx: Any, output: torch.Tensor, rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor, strength: float
    ) -> torch.Tensor:
        dtype = _compute_dtype(down)
        with torch.autocast(rows.device.type, enabled=False):
            inputs, down_cast, up_cast = rows.to(dtype), down.to(dtype), up.to(dtype)
            hidden = inputs @ down_cast.t()
            ctx.save_for_backward(inputs, hidden, down_cast, up_cast)
            ctx.strength, ctx.rows_dtype, ctx.weight_dtype = strength, rows.dtype, down.dtype
            return torch.addmm(output.to(dtype), hidden, up_cast.t(), alpha=strength).to(output.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> Any:
        inputs, hidden, down, up = ctx.saved_tensors
        d_output = grad.to(inputs.dtype)
        d_hidden, d_up = d_output @ up, d_output.t() @ hidden
        if ctx.strength != 1:  # each operation on a small tensor costs a GPU as much as its start
            d_hidden.mul_(ctx.strength)
            d_up.mul_(ctx.strength)
        d_down = d_hidden.t() @ inputs
        d_rows = (d_hidden @ down).to(ctx.rows_dtype) if ctx.needs_input_grad[1] else None
        return grad, d_rows, d_down.to(ctx.weight_dtype), d_up.to(ctx.weight_dtype), None


def _compute_dtype(weight: torch.Tensor) -> torch.dtype:
    """Return the dtype in which torch would compute a matrix product now."""
    device = weight.device.type
    dtype: torch.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return dtype
