"""What layers do between their large products, each as one step with a gradient of its own.

Written as several operations, each makes and keeps a tensor for the next. Here a gate keeps two of its three, a
rotation and a norm make no more than their results, and a LoRA is added while its second product is made.
"""

from __future__ import annotations

from typing import Any

import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch.autograd.function import once_differentiable


class Gate(torch.autograd.Function):  # type: ignore[misc]
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, wanted: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
        gate, up = ctx.saved_tensors
        return torch.ops.aten.silu_backward(wanted * up, gate), F.silu(gate).mul_(wanted)


class Norm(torch.autograd.Function):  # type: ignore[misc]
    """Divided by the root of the mean square, times a weight that is not trained."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, small: float) -> torch.Tensor:
        size = torch.linalg.vector_norm(rows, dim=-1, keepdim=True)
        scale = size.square_().div_(rows.shape[-1]).add_(small).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        return (rows * scale).mul_(weight)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, wanted: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        rows, weight, scale = ctx.saved_tensors
        straight = wanted * weight
        along = torch.linalg.vecdot(straight, rows)[..., None] * scale.square() / -rows.shape[-1]
        return straight.addcmul_(rows, along).mul_(scale), None, None


class Rotation(torch.autograd.Function):  # type: ignore[misc]
    """Pairs of numbers, the halves of a row, turned by the angle of its position."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        return _turned(rows, cosine, sine)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, wanted: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        cosine, sine = ctx.saved_tensors
        return _turned(wanted, cosine, sine.roll(sine.shape[-1] // 2, -1).neg_()), None, None


def _turned(rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
    turned, half = rows * cosine, rows.shape[-1] // 2
    turned[..., :half].addcmul_(rows[..., half:], sine[..., :half], value=-1)
    turned[..., half:].addcmul_(rows[..., :half], sine[..., half:])
    return turned


class WithLora(torch.autograd.Function):  # type: ignore[misc]
    """Rows that a layer gave, and on them the rows that went in, times `down`, times `up`, times a strength."""

    @staticmethod
    def forward(
        ctx: Any, given: torch.Tensor, rows: torch.Tensor, down: torch.Tensor, up: torch.Tensor, strength: float
    ) -> torch.Tensor:
        kind = _computed_in(down)
        with torch.autocast(rows.device.type, enabled=False):
            taken = rows.to(kind)
            narrow = taken @ down.to(kind).t()
            ctx.save_for_backward(taken, narrow, down, up)
            ctx.strength, ctx.kind = strength, rows.dtype
            return torch.addmm(given.to(kind), narrow, up.to(kind).t(), alpha=strength).to(given.dtype)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, wanted: torch.Tensor) -> Any:
        taken, narrow, down, up = ctx.saved_tensors
        by_given = wanted.to(taken.dtype)
        by_narrow = (by_given @ up.to(taken.dtype)).mul_(ctx.strength)
        by_down, by_up = by_narrow.t() @ taken, (by_given.t() @ narrow).mul_(ctx.strength)
        by_rows = (by_narrow @ down.to(taken.dtype)).to(ctx.kind) if ctx.needs_input_grad[1] else None
        return wanted, by_rows, by_down.to(down.dtype), by_up.to(up.dtype), None


def _computed_in(weight: torch.Tensor) -> torch.dtype:
    """The type that torch's own products would be made in now."""
    device = weight.device.type
    kind: torch.dtype = torch.get_autocast_dtype(device) if torch.is_autocast_enabled(device) else weight.dtype
    return kind
