"""Divergence: a loss or weights that are NaN, infinite or have exploded, in a step, in memory and on disk."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import TrainingProError

LOSS_EXPLOSION_FACTOR = 3.0
"""A loss this many times the smoothed one, and far worse than guessing, comes from broken weights."""
GUESSING_FACTOR = 2.0


class DivergenceError(TrainingProError):
    """A step diverged. The weights are still those of the step before, unless `spoiled`: then they are NaN."""

    def __init__(self, text: str, learning_rate: float, *, fp16: bool, spoiled: bool = False) -> None:
        self.spoiled = spoiled
        half_advice = (
            " Load the model in bfloat16 or float32, because large values overflow in float16." if fp16 else ""
        )
        super().__init__(
            f"{text} To fix this, use a lower learning rate (it was {learning_rate:.3g}; try a tenth "
            "of that), a longer warmup, a Max gradient norm of 1 or less, or an alpha no larger "
            f"than the rank.{half_advice}"
        )


def find_divergence(loss: float, norm: float, smoothed: float | None, vocabulary: int, *, scaled: bool) -> str:
    """Return why a step must not change the weights, or an empty string.

    With `scaled` gradients of float16, the gradient scaler skips such steps itself.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm) and not scaled:
        return f"the gradient norm is {norm} at a loss of {loss:.4f}"
    guessing_loss = math.log(max(2, vocabulary))
    if smoothed is not None and loss > max(LOSS_EXPLOSION_FACTOR * smoothed, GUESSING_FACTOR * guessing_loss):
        return f"the loss jumped to {loss:.4g} from a smoothed loss of {smoothed:.4g}"
    return ""


def has_finite_weights(model: Any) -> bool:
    """Whether all trained weights of a model are finite."""
    return all(bool(torch.isfinite(weights).all()) for weights in model.parameters() if weights.requires_grad)


def is_finite_checkpoint(folder: Path) -> bool:
    """Whether all weights in the folder of a checkpoint are finite; unreadable files count as not."""
    try:
        return all(_is_finite_file(file) for file in folder.glob("*.safetensors"))
    except (OSError, SafetensorError):
        return False


def _is_finite_file(file: Path) -> bool:
    opened: Any = safe_open  # older versions of safetensors have no type hints for it
    with opened(file, framework="pt") as tensors:
        return all(bool(torch.isfinite(tensors.get_tensor(name)).all()) for name in tensors.keys())  # noqa: SIM118
