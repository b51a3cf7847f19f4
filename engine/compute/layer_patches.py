"""Patch layers with fused functions that need fewer passes over the memory, where the results are the same.

As separate operations, the elementwise parts of a layer each allocate and save a tensor for the next. Here a gate
saves two of its three tensors, and a rotary embedding and a norm allocate only their results. The layers of a LoRA
are in `lora_layers.py`.

What a layer computes is defined by the model's source. So each kind of layer is tested on a few numbers, with
stand-ins for its weights, and only those with equal results are patched. A step takes 0.84 to 0.88 of the memory
and 0.96 to 0.98 of the time of the libraries' layers (SmolLM2-135M, one thread of an AMD EPYC, 310 tokens).
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from functools import partial
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F  # noqa: N812 - everybody's name for it
from torch.autograd.function import once_differentiable
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..lora import evaluation_context
from .hf_private import attention_of, preserve_attention
from .objective import packed_logits, probe_texts

PROBE_EPSILON, TOLERANCE = 1e-3, 1e-5
EQUAL_IN_HALF = 0.99  # of the numbers: a sum in another order rounds a few of them differently
ROTARY_FUNCTION = "apply_rotary_pos_emb"
ATTENTION_NAME = "training_pro_documents"
ROWS_AT_ONCE = 1024  # of the mask
# What a model may raise that does not know an attention, or the positions of a packed row.
PROBE_ERRORS = (ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError)
ATTENTION_TOLERANCE, HALF_ATTENTION_TOLERANCE = 1e-4, 5e-2


@contextmanager
def patch_base_layers(base: Any) -> Iterator[None]:
    """Patch the base model's gated MLPs, norms and rotary embeddings within this context."""
    source = vars(sys.modules[type(base).__module__])
    rotary = source.get(ROTARY_FUNCTION)
    # accelerate has already replaced the forward of a layer that is spread over several GPUs.
    modules = [m for m in base.modules() if "forward" not in vars(m)]
    patches: list[tuple[Any, Callable[..., Any]]] = [(m, _swiglu_forward) for m in modules if is_gated_mlp(m)]
    for norm in filter(is_rms_norm, modules):
        is_half = rounds_before_weight(norm)
        kernel, dtype = (half_rms_norm, norm.weight.dtype) if is_half else (RMSNorm.apply, torch.float32)
        patches.append((norm, partial(_rms_norm_forward, kernel, dtype)))
    try:
        if rotary is not None and is_rotary_embedding(rotary):
            source[ROTARY_FUNCTION] = partial(_rotary_forward, rotary)
        for module, forward in patches:
            module.forward = partial(forward, module, module.forward)
        yield
    finally:
        for module, _ in patches:
            vars(module).pop("forward", None)
        if rotary is not None:
            source[ROTARY_FUNCTION] = rotary


def is_gated_mlp(module: Any) -> bool:
    """Whether a module computes down(silu(gate(x)) * up(x)) and nothing else."""
    if not all(hasattr(module, name) for name in ("gate_proj", "up_proj", "down_proj", "act_fn")):
        return False
    stand_in = SimpleNamespace(
        gate_proj=lambda x: x + 1, up_proj=lambda x: x - 1, down_proj=lambda x: x * 2, act_fn=module.act_fn
    )
    rows = _numbers(2, 8)
    return _is_same(lambda: type(module).forward(stand_in, rows), lambda: F.silu(rows + 1) * (rows - 1) * 2)


def is_rms_norm(module: Any) -> bool:
    """Whether a module is a plain RMSNorm."""
    if _epsilon(module) is None or getattr(getattr(module, "weight", None), "dim", int)() != 1:
        return False
    rows, weight = _numbers(2, 8), _numbers(8)
    stand_in = SimpleNamespace(weight=weight, variance_epsilon=PROBE_EPSILON, eps=PROBE_EPSILON)
    return _is_same(
        lambda: type(module).forward(stand_in, rows), lambda: RMSNorm.apply(rows, weight, PROBE_EPSILON)
    )


def rounds_before_weight(norm: Any) -> bool:
    """Whether an RMSNorm in half precision rounds its rows before it multiplies them by the weight."""
    dtype = norm.weight.dtype
    if dtype not in (torch.bfloat16, torch.float16):
        return False
    device = "cpu" if norm.weight.is_meta else norm.weight.device  # each device has kernels of its own
    rows, weight = _numbers(64, 64).to(device, dtype), _numbers(64).to(device, dtype)
    stand_in = SimpleNamespace(weight=weight, variance_epsilon=PROBE_EPSILON, eps=PROBE_EPSILON)
    with torch.no_grad():
        output, expected = type(norm).forward(stand_in, rows), half_rms_norm(rows, weight, PROBE_EPSILON)
    return output.dtype == dtype and bool((output == expected).float().mean() >= EQUAL_IN_HALF)


def is_rotary_embedding(function: Callable[..., Any]) -> bool:
    """Whether this function of the model's source rotates queries and keys as our own does."""
    rows, cosine, sine = _numbers(1, 2, 3, 8), _numbers(1, 3, 8), _numbers(1, 3, 8)
    fused = partial(_rotary_forward, function, rows, rows[:, :1], cosine, sine)
    return _is_same(lambda: torch.cat(function(rows, rows[:, :1], cosine, sine), 1), lambda: torch.cat(fused(), 1))


def _numbers(*shape: int) -> torch.Tensor:
    return torch.randn(*shape, generator=torch.Generator().manual_seed(7))


def _is_same(original: Callable[[], Any], fused: Callable[[], torch.Tensor]) -> bool:
    with torch.no_grad():
        try:
            output = original()
        except Exception:  # noqa: BLE001 - it may be any layer of any model; one that fails is not patched
            return False
        expected = fused()
    return (
        isinstance(output, torch.Tensor)
        and output.shape == expected.shape
        and bool(((output - expected).abs() <= TOLERANCE * (1 + expected.abs())).all())
    )


def _epsilon(module: Any) -> float | None:
    eps: float | None = getattr(module, "variance_epsilon", getattr(module, "eps", None))
    return eps


def _swiglu_forward(module: Any, original: Callable[..., Any], x: torch.Tensor, *args: Any, **kwargs: Any) -> Any:
    if args or kwargs:
        return original(x, *args, **kwargs)
    return module.down_proj(SiluMul.apply(module.gate_proj(x), module.up_proj(x)))


def _rms_norm_forward(
    kernel: Callable[..., Any],
    dtype: torch.dtype,
    module: Any,
    original: Callable[..., Any],
    x: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """In other dtypes than the kernel's the original runs, since it rounds between its operations."""
    if args or kwargs or {x.dtype, module.weight.dtype} != {dtype} or module.weight.requires_grad:
        return original(x, *args, **kwargs)
    return kernel(x, module.weight, _epsilon(module))


def _rotary_forward(
    original: Callable[..., Any],
    q: torch.Tensor,
    k: torch.Tensor,
    cos: torch.Tensor,
    sin: torch.Tensor,
    *args: Any,
    **kwargs: Any,
) -> Any:
    """The original runs where only a part of each row is rotated, or along other dimensions."""
    if args or kwargs or cos.shape[-1] != q.shape[-1] or cos.dtype != q.dtype:
        return original(q, k, cos, sin, *args, **kwargs)
    cos, sin = cos[:, None], sin[:, None]
    return RotaryEmbedding.apply(q, cos, sin), RotaryEmbedding.apply(k, cos, sin)


class SiluMul(torch.autograd.Function):  # type: ignore[misc]
    """silu(gate) * up."""

    @staticmethod
    def forward(ctx: Any, gate: torch.Tensor, up: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(gate, up)
        return F.silu(gate).mul_(up)  # in place: only gate and up are kept, not silu(gate)

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
        # With y = r * s * w and s = (mean(r^2) + eps)^-1/2: dr = s * (g * w - r * s^2 * mean(g * w * r)).
        rows, weight, scale = ctx.saved_tensors
        weighted = grad * weight
        projection = torch.linalg.vecdot(weighted, rows)[..., None] * scale.square() / -rows.shape[-1]
        return weighted.addcmul_(rows, projection).mul_(scale), None, None


def half_rms_norm(rows: torch.Tensor, weight: torch.Tensor, eps: float | None) -> torch.Tensor:
    """RMSNorm of rows in half precision, rounded once before the weight; on a GPU, torch has one kernel for it."""
    if rows.device.type == "cpu":
        output: torch.Tensor = HalfRMSNorm.apply(rows, weight, eps)
        return output
    with torch.autocast(rows.device.type, enabled=False):  # on a GPU, it would make the result float32
        return F.rms_norm(rows, rows.shape[-1:], None, eps) * weight


class HalfRMSNorm(torch.autograd.Function):  # type: ignore[misc]
    """RMSNorm in half precision with a frozen weight, in float32 up to the first rounding."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
        norm = torch.linalg.vector_norm(rows, dim=-1, keepdim=True, dtype=torch.float32)
        scale = norm.square_().div_(rows.shape[-1]).add_(eps).rsqrt_()
        ctx.save_for_backward(rows, weight, scale)
        return torch.mul(rows, scale, out=torch.empty_like(rows)).mul_(weight)

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # As in RMSNorm, with dr = (g * w + r * c) * s and c = s^2 * mean(g * w * r), in float32 until the end.
        rows, weight, scale = ctx.saved_tensors
        weighted = grad * weight
        projection = (weighted * rows).sum(-1, keepdim=True, dtype=torch.float32)
        projection.mul_(scale).mul_(scale)
        weighted = torch.addcmul(weighted, rows, projection, value=-1 / rows.shape[-1])
        return torch.mul(weighted, scale, out=torch.empty_like(rows)), None, None


class RotaryEmbedding(torch.autograd.Function):  # type: ignore[misc]
    """Rotary position embedding, with the pairs in the two halves of a row."""

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, cosine: torch.Tensor, sine: torch.Tensor) -> torch.Tensor:
        ctx.save_for_backward(cosine, sine)
        half = rows.shape[-1] // 2
        return _rotate(rows, cosine, sine[..., :half], sine[..., half:])

    @staticmethod
    @once_differentiable  # type: ignore[untyped-decorator]
    def backward(ctx: Any, grad: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        # The transpose of a rotation turns the other way: the sine changes its sign, and the halves swap places.
        cosine, sine = ctx.saved_tensors
        half = grad.shape[-1] // 2
        return _rotate(grad, cosine, sine[..., half:], sine[..., :half], direction=-1), None, None


def _rotate(
    rows: torch.Tensor, cosine: torch.Tensor, first: torch.Tensor, second: torch.Tensor, direction: int = 1
) -> torch.Tensor:
    rotated, half = rows * cosine, rows.shape[-1] // 2
    rotated[..., :half].addcmul_(rows[..., half:], first, value=-direction)
    rotated[..., half:].addcmul_(rows[..., :half], second, value=direction)
    return rotated


def packed_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int = 0,
    allow_is_causal_skip: bool = True,
    **kwargs: Any,
) -> torch.Tensor | None:
    """Return where each text begins, and the end of the row; the usual mask if it is of another kind."""

    def mask_rows(start: int, count: int, *, skip: bool = False) -> torch.Tensor | None:
        mask: torch.Tensor | None = sdpa_mask(
            batch_size, count, kv_length, q_offset=start, allow_is_causal_skip=skip, **kwargs
        )
        return mask

    # For a packed row, transformers does not allow the skip of a causal mask (5.6.2 and 5.23.0); this is how it is
    # told from other rows.
    if not allow_is_causal_skip and (batch_size, q_length, q_offset) == (1, kv_length, 0):
        bounds = _text_bounds(mask_rows, q_length)
        if bounds is not None:
            return bounds
    return mask_rows(q_offset, q_length, skip=allow_is_causal_skip)


def _text_bounds(mask_rows: Callable[[int, int], torch.Tensor | None], length: int) -> torch.Tensor | None:
    """Return the bounds, or None if a row sees anything but its own text up to itself."""
    # A few rows of the mask at a time: all rows of 16,000 tokens take 2.4 GB.
    firsts, counts = list[torch.Tensor](), list[torch.Tensor]()
    for start in range(0, length, ROWS_AT_ONCE):
        rows = mask_rows(start, min(ROWS_AT_ONCE, length - start))
        if rows is None or rows.dtype != torch.bool:
            return None
        firsts.append(rows[0, 0].to(torch.uint8).argmax(-1))  # the first position that each row sees
        counts.append(rows[0, 0].sum(-1))
    # One wait for a GPU in each batch, before its first layer.
    first, count = torch.stack([torch.cat(firsts), torch.cat(counts)]).cpu().numpy()
    positions = np.arange(length)
    if (count != positions - first + 1).any() or (first[first] != first).any():
        return None
    return torch.from_numpy(np.append(np.flatnonzero(first == positions), length))


def packed_attention_forward(
    attend: Callable[..., torch.Tensor],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: Any,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend within each text if the mask holds their bounds, else as usual."""
    if attention_mask is None or attention_mask.dim() != 1:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return output
    return attend(module, query, key, value, attention_mask, **kwargs), None


def attend_text_by_text(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: torch.Tensor,
    **kwargs: Any,
) -> torch.Tensor:
    texts = zip(*(states.split(bounds.diff().tolist(), dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *text, None, **kwargs)[0] for text in texts], dim=1)


def attend_in_one_call(
    kernel: Callable[..., torch.Tensor],
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    bounds: Any,
    *,
    scaling: float | None = None,
    dropout: float = 0.0,
    **kwargs: Any,
) -> torch.Tensor:
    """Attend with a kernel for texts of different lengths; what it does not know goes text by text."""
    if dropout or any(kwargs.get(name) is not None for name in ("softcap", "s_aux")):
        return attend_text_by_text(module, query, key, value, bounds, scaling=scaling, dropout=dropout, **kwargs)
    if not hasattr(bounds, "by_device"):  # for all layers: each copy to a GPU costs one of them a wait
        bounds.by_device, bounds.longest = {}, int(bounds.diff().max())
    if query.device not in bounds.by_device:
        bounds.by_device[query.device] = bounds.to(query.device, torch.int32, non_blocking=True)
    states = (states[0].transpose(0, 1) for states in (query, key, value))  # heads in the middle
    return kernel(*states, bounds.by_device[query.device], bounds.longest, scaling)[None]


def one_call_kernels(device: torch.device) -> Iterator[Callable[..., torch.Tensor]]:
    """Yield the kernels for texts of different lengths that are installed: flash-attn's, then torch's own."""
    if device.type != "cuda":
        return
    with suppress(ImportError):
        from flash_attn import flash_attn_varlen_func

        yield lambda q, k, v, bounds, longest, scale: flash_attn_varlen_func(
            q, k, v, bounds, bounds, longest, longest, softmax_scale=scale, causal=True
        )
    with suppress(ImportError):
        from torch.nn.attention.varlen import varlen_attn  # not in the webui's torch 2.9

        yield lambda q, k, v, bounds, longest, scale: varlen_attn(
            q, k, v, bounds, bounds, longest, longest, scale=scale, window_size=(-1, 0), enable_gqa=True
        )


@contextmanager
def use_packed_attention(base: Any) -> Iterator[bool]:
    """Attend within each text of a row in this context, if the results agree; yields whether they do."""
    if attention_of(base) != "sdpa" or not hasattr(base, "set_attn_implementation"):
        yield False
        return
    AttentionMaskInterface.register(ATTENTION_NAME, packed_mask)
    ways: list[Callable[..., torch.Tensor]] = [
        *(partial(attend_in_one_call, kernel) for kernel in one_call_kernels(base.device)),
        attend_text_by_text,
    ]
    with preserve_attention(base):
        # With the usual implementation and with ours, on two short texts in one row.
        texts, expected = probe_texts(base), None
        with suppress(*PROBE_ERRORS), evaluation_context(base):
            expected = packed_logits(base, texts)
        agrees = expected is not None and any(_agrees(base, way, texts, expected) for way in ways)
        if agrees:
            yield True
    if not agrees:
        yield False


def _agrees(base: Any, attend: Callable[..., torch.Tensor], texts: torch.Tensor, expected: torch.Tensor) -> bool:
    """Switch the attention of a model, and return whether its logits stay what they were."""
    AttentionInterface.register(ATTENTION_NAME, partial(packed_attention_forward, attend))
    # A model may ignore the switch, or fail with it.
    with suppress(*PROBE_ERRORS), evaluation_context(base):
        base.set_attn_implementation(ATTENTION_NAME)
        difference = (packed_logits(base, texts) - expected).norm()
        is_half = base.dtype not in (torch.float32, torch.float64)
        tolerance = HALF_ATTENTION_TOLERANCE if is_half else ATTENTION_TOLERANCE
        return attention_of(base) == ATTENTION_NAME and bool(difference <= tolerance * expected.norm())
    return False
