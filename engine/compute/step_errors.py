"""Errors of a training step: out of memory, a loss that is NaN or has exploded; with what helps against each."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager

import torch

from ...core.errors import ModelError, Remedy, TrainingProError
from ...core.host import DeviceMemory
from ...train_utils import size
from .gpu_memory import release_error

LOSS_EXPLOSION_FACTOR = 3.0
"""A loss this many times the smoothed one, and far worse than guessing, comes from broken weights."""
GUESSING_FACTOR = 2.0
_OOM_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")


class DivergenceError(TrainingProError):
    """A step diverged. The weights are still those of the step before, unless `spoiled`: then they are NaN."""

    def __init__(self, text: str, *, spoiled: bool = False) -> None:
        self.spoiled = spoiled
        super().__init__(text)


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in _OOM_MESSAGES)


def find_divergence(loss: float, norm: float, smoothed: float | None, vocabulary: int, *, scaled: bool) -> str:
    """Return why a step must not change the weights, or an empty string.

    With `scaled` gradients of float16, the gradient scaler skips such steps itself.
    """
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    if not math.isfinite(norm) and not scaled:
        return f"the gradients are {norm}, at a loss of {loss:.4f}"
    guessing_loss = math.log(max(2, vocabulary))
    if smoothed is not None and loss > max(LOSS_EXPLOSION_FACTOR * smoothed, GUESSING_FACTOR * guessing_loss):
        return f"the loss has exploded: {loss:.4g} after a smoothed loss of {smoothed:.4g}"
    return ""


def divergence_error(reason: str, step: int, learning_rate: float, dtype: str) -> DivergenceError:
    """Return the error for a step that would have broken weights that are still good."""
    summary = f"Step {step} would have broken the LoRA: {reason}. The weights are those of step {step - 1}."
    return DivergenceError(f"{summary} {_divergence_advice(learning_rate, dtype)}")


def broken_weights_error(step: int, learning_rate: float, dtype: str) -> DivergenceError:
    """Return the error for weights that are already NaN or infinite; only a checkpoint may be good."""
    summary = f"Training has broken the weights: after step {step} they are no numbers any more (NaN or infinite)."
    return DivergenceError(f"{summary} {_divergence_advice(learning_rate, dtype)}", spoiled=True)


def _divergence_advice(learning_rate: float, dtype: str) -> str:
    half_advice = " Compute in bfloat16 or float32: float16 overflows." if dtype == "float16" else ""
    return (
        f"What helps most: a lower learning rate (it was {learning_rate:.3g}; try a tenth of it), a longer "
        f"warm-up, gradients clipped at 1 or less, alpha no larger than rank.{half_advice}"
    )


def out_of_memory_error(device: torch.device, remedies: Sequence[Remedy], tokens: int = 0) -> ModelError:
    """Return the error for one example of `tokens` tokens that does not fit; 0 if no example is to blame."""
    cause = f": one example of {tokens} tokens alone does not fit" if tokens else ", in one forward pass"
    advice = [*(remedy.words for remedy in remedies), "the model loaded in 4 bits"]
    return ModelError(
        f"Out of memory{cause}{_memory_figures(device)}. What helps most: {'; '.join(advice)}.", remedies
    )


@contextmanager
def explain_out_of_memory(
    device: torch.device, remedies: Callable[[DeviceMemory], Sequence[Remedy]]
) -> Iterator[None]:
    """Turn an out-of-memory error into one with remedies, also outside of a step: probes and evaluations."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        release_error(error)  # the figures below then count the model and the LoRA only
        raise out_of_memory_error(device, remedies(device_memory(device))) from None


def unsplittable_batch_error(batch: int, accumulation: int, reason: str) -> ModelError:
    """Return the error for running out of memory where a batch cannot be split."""
    smaller = {"batch_size": max(1, batch // 2), "accumulation": 2 * accumulation}
    advice = f"True Batch Size {smaller['batch_size']} and Gradient Accumulation {smaller['accumulation']}"
    return ModelError(
        f"Out of memory, and {reason} a batch cannot be done again in halves. Start anew with {advice}: the steps "
        "stay what they are.",
        [Remedy(advice, smaller)],
    )


def device_memory(device: torch.device) -> DeviceMemory:
    """Return used and total memory of the model's device; zeros for a CPU."""
    if device.type != "cuda":
        return DeviceMemory("CPU", 0, 0)
    free, total = torch.cuda.mem_get_info(device)
    return DeviceMemory(device.type, total - free, total, torch.cuda.memory_allocated(device))


def _memory_figures(device: torch.device) -> str:
    if device.type != "cuda":
        return ""
    free, total = torch.cuda.mem_get_info(device)
    held = torch.cuda.memory_allocated(device)
    return f" ({size(total)} on the card, {size(held)} of it hold model and LoRA, {size(free)} are free)"
