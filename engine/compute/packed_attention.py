"""SDPA attention for packed rows, text by text: scores between two texts are never computed.

The libraries use a mask over the whole row, whose cost grows with the square of its length. Here the mask is read
once as the positions where texts begin, and each layer attends to one text after the other, as if it were alone.
Any other mask (padding, a sliding window) is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..lora import autocast_model
from .capabilities import eval_mode

ATTENTION_NAME = "training_pro_documents"
PROBE_LENGTH = 12
TOLERANCE = {torch.float32: 1e-4, torch.float64: 1e-4}
HALF_TOLERANCE = 5e-2


def packed_mask(*args: Any, **kwargs: Any) -> torch.Tensor | None:
    """Return where each text begins, and the end of the row; the usual mask if it is of another kind."""
    full_mask = sdpa_mask(*args, **kwargs)
    return (
        full_mask
        if full_mask is None or full_mask.shape[0] != 1 or full_mask.dtype != torch.bool
        else _text_bounds(full_mask)
    )


def _text_bounds(full_mask: torch.Tensor) -> torch.Tensor:
    visible = full_mask[0, 0]
    rows, columns = visible.shape
    if rows != columns:
        return full_mask
    positions = torch.arange(rows, device=full_mask.device)
    first = visible.to(torch.uint8).argmax(-1)
    if not bool((visible.sum(-1) == positions - first + 1).all()) or not bool((first[first] == first).all()):
        return full_mask
    begins = (first == positions).nonzero()[:, 0]
    return torch.cat(
        [begins.cpu(), torch.tensor([rows])]
    )  # on a GPU, each layer would have to synchronize to read them


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
    config = base.config
    if getattr(config, "_attn_implementation", "") != "sdpa" or not hasattr(base, "set_attn_implementation"):
        yield False
        return
    AttentionInterface.register(ATTENTION_NAME, packed_attention_forward)
    AttentionMaskInterface.register(ATTENTION_NAME, packed_mask)
    configs = {id(m.config): m.config for m in base.modules() if hasattr(m, "set_attn_implementation")}
    saved = [(c, c._attn_implementation_internal) for c in configs.values()]
    try:
        if not (works := _switch_and_compare(base)):
            _restore(saved)
        yield works
    finally:
        _restore(saved)


def _restore(saved: list[tuple[Any, Any]]) -> None:
    for config, implementation in saved:
        config._attn_implementation_internal = implementation


def _switch_and_compare(base: Any) -> bool:
    """Compare both implementations on two short texts in one row; leaves the model switched to ours."""
    vocabulary = base.get_input_embeddings().weight.shape[0]
    ids = torch.randint(0, vocabulary, (1, 2 * PROBE_LENGTH), generator=torch.Generator().manual_seed(7)).to(
        base.device
    )
    positions = torch.arange(2 * PROBE_LENGTH, device=base.device)[None] % PROBE_LENGTH
    with torch.no_grad(), eval_mode(base), autocast_model(base):
        try:
            expected = base(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
            base.set_attn_implementation(ATTENTION_NAME)
            logits = base(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError):
            return False
    tolerance = TOLERANCE.get(base.dtype, HALF_TOLERANCE)
    switched = base.config._attn_implementation == ATTENTION_NAME
    return bool(switched and (logits - expected).norm() <= tolerance * expected.norm())
