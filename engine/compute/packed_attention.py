"""SDPA attention for packed rows, text by text: scores between two texts are never computed.

The libraries use a mask over the whole row, whose cost grows with the square of its length. Here the mask is read
once as the positions where texts begin, and each layer attends to one text after the other, as if it were alone.
Any other mask (padding, a sliding window) is left as it is. A step takes 0.76 (4 texts of 256 tokens each) to 0.92
(of 78) of its time with the mask (SmolLM2-135M, one thread of an AMD EPYC).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..lora import autocast_model
from .capabilities import eval_mode, packed_logits, probe_texts

ATTENTION_NAME = "training_pro_documents"
PROBE_LENGTH = 12
ROWS_AT_ONCE = 1024
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_TOLERANCE = 5e-2


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

    # For a packed row, transformers does not allow the skip.
    if not allow_is_causal_skip and (batch_size, q_length, q_offset) == (1, kv_length, 0):
        bounds = _text_bounds(mask_rows, q_length)
        if bounds is not None:
            return bounds
    return mask_rows(q_offset, q_length, skip=allow_is_causal_skip)


def _text_bounds(mask_rows: Callable[[int, int], torch.Tensor | None], length: int) -> torch.Tensor | None:
    """Read the bounds from a few rows of the mask at a time: all rows of 16,000 tokens take 2.4 GB."""
    first = torch.empty(0, dtype=torch.long)
    for start in range(0, length, ROWS_AT_ONCE):
        rows = mask_rows(start, min(ROWS_AT_ONCE, length - start))
        if rows is None or rows.dtype != torch.bool:
            return None
        visible = rows[0, 0]
        positions = torch.arange(start, start + len(visible), device=visible.device)
        block = visible.to(torch.uint8).argmax(-1)
        first = torch.cat([first.to(block.device), block])
        if not bool((visible.sum(-1) == positions - block + 1).all()) or not bool((first[block] == block).all()):
            return None
    positions = torch.arange(length, device=first.device)
    begins = (first == positions).nonzero()[:, 0].cpu()  # on a GPU, each layer would synchronize to read them
    return torch.cat([begins, torch.tensor([length])])


def packed_attention_forward(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **kwargs: Any,
) -> tuple[torch.Tensor, None]:
    """Attend text by text if the mask holds their bounds, else as usual."""
    if attention_mask is None or attention_mask.dim() != 1:
        output: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **kwargs
        )
        return output
    lengths = attention_mask.diff().tolist()
    texts = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *text, None, **kwargs)[0] for text in texts], dim=1), None


@contextmanager
def use_packed_attention(base: Any) -> Iterator[bool]:
    """Attend text by text within this context, if the results agree; yields whether they do."""
    is_sdpa = getattr(base.config, "_attn_implementation", "") == "sdpa"
    if is_sdpa and hasattr(base, "set_attn_implementation"):
        AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
        AttentionMaskInterface.register(ATTENTION_NAME, packed_mask)
        with preserve_attention(base):
            if _switch_and_compare(base):
                yield True
                return
    yield False


@contextmanager
def preserve_attention(base: Any) -> Iterator[None]:
    """Restore the attention implementation of all parts of a model on exit."""
    configs = {id(m.config): m.config for m in base.modules() if hasattr(m, "set_attn_implementation")}
    saved = [(config, config._attn_implementation_internal) for config in configs.values()]
    try:
        yield
    finally:
        for config, implementation in saved:
            config._attn_implementation_internal = implementation


def _switch_and_compare(base: Any) -> bool:
    """Compare both implementations on two short texts in one row; leaves the model switched to ours."""
    row = probe_texts(base, PROBE_LENGTH).reshape(1, -1)
    positions = torch.arange(2 * PROBE_LENGTH, device=base.device)[None] % PROBE_LENGTH
    with torch.no_grad(), eval_mode(base), autocast_model(base):
        try:
            expected = packed_logits(base, row, positions)
            base.set_attn_implementation(ATTENTION_NAME)
            logits = packed_logits(base, row, positions)
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError):
            return False
    tolerance = TOLERANCE.get(base.dtype, HALF_TOLERANCE)
    switched = base.config._attn_implementation == ATTENTION_NAME
    return bool(switched and (logits - expected).norm() <= tolerance * expected.norm())
