"""NEFTune: noise on the embeddings, scaled by the length of each example, packed or padded."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from typing import Any

import torch


@contextmanager
def add_neftune_noise(
    embeddings: torch.nn.Module, alpha: float, owners: torch.Tensor, inputs: Mapping[str, torch.Tensor]
) -> Iterator[None]:
    """Add uniform noise of up to alpha / sqrt(tokens of the example * width) to each embedding in this context."""
    if not alpha:
        yield
        return
    lengths = example_lengths(owners, inputs.get("attention_mask"))

    def add(module: torch.nn.Module, args: Any, embedded: torch.Tensor) -> torch.Tensor:
        scale = alpha / (lengths.to(embedded.device) * embedded.shape[-1]).sqrt()
        noise = torch.empty_like(embedded, dtype=torch.float32).uniform_(-1, 1) * scale[..., None]
        return embedded + noise.to(embedded.dtype)

    hook = embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


def example_lengths(owners: torch.Tensor, mask: torch.Tensor | None) -> torch.Tensor:
    """Return, for each position, the number of tokens of its example."""
    real = torch.ones_like(owners) if mask is None else mask
    counts = torch.zeros(int(owners.max()) + 1, dtype=torch.float32, device=owners.device)
    counts.index_add_(0, owners.reshape(-1), real.reshape(-1).to(counts.dtype))
    return counts[owners]
