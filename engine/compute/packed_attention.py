"""Attention over several texts in one row, text by text: what lies between two of them is never worked out.

The libraries' way is a mask over the whole row, whose cost grows with its square. Here the mask is made once, read
as the places where a text begins, and each layer attends to one text after the other, as if it stood alone. Any
other mask (padding, a sliding window) is left as it is.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch
from transformers import AttentionInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import AttentionMaskInterface, sdpa_mask

from ..lora import in_its_type
from .capabilities import quiet

WAY = "training_pro_documents"
LENGTH = 12
CLOSE = {torch.float32: 1e-4, torch.float64: 1e-4}
CLOSE_IN_HALF = 5e-2


def mask(*args: Any, **more: Any) -> torch.Tensor | None:
    """Where each text begins, and the end; the usual mask where it says something else."""
    made = sdpa_mask(*args, **more)
    return made if made is None or made.shape[0] != 1 or made.dtype != torch.bool else _bounds(made)


def _bounds(made: torch.Tensor) -> torch.Tensor:
    seen = made[0, 0]
    rows, columns = seen.shape
    if rows != columns:
        return made
    places = torch.arange(rows, device=made.device)
    first = seen.to(torch.uint8).argmax(-1)
    if not bool((seen.sum(-1) == places - first + 1).all()) or not bool((first[first] == first).all()):
        return made
    begins = (first == places).nonzero()[:, 0]
    return torch.cat([begins.cpu(), torch.tensor([rows])])  # on a card, each layer would have to wait to read them


def attend(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    **more: Any,
) -> tuple[torch.Tensor, None]:
    """Text by text where the mask says where they begin."""
    if attention_mask is None or attention_mask.dim() != 1:
        found: tuple[torch.Tensor, None] = sdpa_attention_forward(
            module, query, key, value, attention_mask, **more
        )
        return found
    lengths = attention_mask.diff().tolist()
    texts = zip(*(states.split(lengths, dim=2) for states in (query, key, value)), strict=True)
    return torch.cat([sdpa_attention_forward(module, *text, None, **more)[0] for text in texts], dim=1), None


@contextmanager
def text_by_text(base: Any) -> Iterator[bool]:
    """Inside, a model with sdpa attends so, if it gives the same then; says whether it does."""
    config = base.config
    if getattr(config, "_attn_implementation", "") != "sdpa" or not hasattr(base, "set_attn_implementation"):
        yield False
        return
    AttentionInterface.register(WAY, attend)
    AttentionMaskInterface.register(WAY, mask)
    configs = {id(m.config): m.config for m in base.modules() if hasattr(m, "set_attn_implementation")}
    before = [(one, one._attn_implementation_internal) for one in configs.values()]
    try:
        if not (works := _gives_the_same(base)):
            _put_back(before)
        yield works
    finally:
        _put_back(before)


def _put_back(before: list[tuple[Any, Any]]) -> None:
    for config, way in before:
        config._attn_implementation_internal = way


def _gives_the_same(base: Any) -> bool:
    """Two short texts in one row, both ways; from here on it is ours."""
    known = base.get_input_embeddings().weight.shape[0]
    ids = torch.randint(0, known, (1, 2 * LENGTH), generator=torch.Generator().manual_seed(7)).to(base.device)
    positions = torch.arange(2 * LENGTH, device=base.device)[None] % LENGTH
    with torch.no_grad(), quiet(base), in_its_type(base):
        try:
            right = base(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
            base.set_attn_implementation(WAY)
            found = base(input_ids=ids, position_ids=positions, use_cache=False).logits.float()
        except (ValueError, RuntimeError, TypeError, IndexError, AttributeError, KeyError):
            return False
    close = CLOSE.get(base.dtype, CLOSE_IN_HALF)
    ours = base.config._attn_implementation == WAY
    return bool(ours and (found - right).norm() <= close * right.norm())
