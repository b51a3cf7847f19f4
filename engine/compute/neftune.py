"""NEFTune: noise on what a model reads, the less the longer an example is, packed or padded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def noisy(
    embeddings: torch.nn.Module, alpha: float, owners: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Inside, each embedded token is moved by up to alpha / root of (its example's tokens x width)."""
    if not alpha:
        yield
        return
    lengths = lengths_of(owners, inputs.get("attention_mask"))

    def add(module: torch.nn.Module, given: Any, made: torch.Tensor) -> torch.Tensor:
        reach = alpha / (lengths.to(made.device) * made.shape[-1]).sqrt()
        noise = torch.empty_like(made, dtype=torch.float32).uniform_(-1, 1) * reach[..., None]
        return made + noise.to(made.dtype)

    hook = embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


def lengths_of(owners: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """For each place, how many tokens the example has that it belongs to."""
    real = torch.ones_like(owners) if mask is None else mask
    counts = torch.zeros(int(owners.max()) + 1, dtype=torch.float32, device=owners.device)
    counts.index_add_(0, owners.reshape(-1), real.reshape(-1).to(counts.dtype))
    return counts[owners]
