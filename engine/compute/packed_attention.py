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
from .hf_private import attention_of, preserve_attention

ATTENTION_NAME = "training_pro_documents"
PROBE_LENGTH = 12
ROWS_AT_ONCE = 1024  # of the mask
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
    first = torch.empty(0, dtype=torch.long)
    for start in range(0, length, ROWS_AT_ONCE):
        rows = mask_rows(start, min(ROWS_AT_ONCE, length - start))
        if rows is None or rows.dtype != torch.bool:
            return None
        visible = rows[0, 0]
        positions = torch.arange(start, start + len(visible), device=visible.device)
        block = visible.to(torch.uint8).argmax(-1)  # the first position that each row sees
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
    if attention_of(base) != "sdpa" or not hasattr(base, "set_attn_implementation"):
        yield False
        return
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, packed_mask)
    row = probe_texts(base, PROBE_LENGTH).reshape(1, -1)
    positions = torch.arange(2 * PROBE_LENGTH, device=base.device)[None] % PROBE_LENGTH
    agrees = False
    with preserve_attention(base):
        # Both implementations on two short texts in one row. A model may ignore the switch, or fail with it.
        with torch.no_grad(), eval_mode(base), autocast_model(base):
            try:
                expected = packed_logits(base, row, positions)
                base.set_attn_implementation(ATTENTION_NAME)
                difference = (packed_logits(base, row, positions) - expected).norm()
                tolerance = TOLERANCE.get(base.dtype, HALF_TOLERANCE)
                agrees = attention_of(base) == ATTENTION_NAME and bool(difference <= tolerance * expected.norm())
            except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError):
                agrees = False
        if agrees:
            yield True
    if not agrees:
        yield False
