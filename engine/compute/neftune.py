"""NEFTune: noise on the embeddings, scaled by the length of each example, packed or padded."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import torch

from .collator import Batch


@contextmanager
def add_neftune_noise(embeddings: torch.nn.Module, alpha: float, batch: Batch) -> Iterator[None]:
    """Add uniform noise of up to alpha / sqrt(tokens of the example * width) to each embedding in this context."""
    if not alpha:
        yield
        return
    lengths = example_lengths(batch)

    def add(module: torch.nn.Module, args: Any, embedded: torch.Tensor) -> torch.Tensor:
        scale = alpha / (lengths.to(embedded.device) * embedded.shape[-1]).sqrt()
        noise = torch.empty_like(embedded, dtype=torch.float32).uniform_(-1, 1) * scale[..., None]
        return embedded + noise.to(embedded.dtype)

    hook = embeddings.register_forward_hook(add)
    try:
        yield
    finally:
        hook.remove()


def example_lengths(batch: Batch) -> torch.Tensor:
    """Return, for each position, the number of tokens of its example."""
    lengths = [len(example.ids) for example in batch.examples]
    return torch.tensor(lengths, dtype=torch.float32, device=batch.owners.device)[batch.owners]
