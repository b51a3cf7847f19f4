"""Steps that fail: out of memory (run the batch in parts, or say what helps), or an exploding loss."""

from __future__ import annotations

import gc
import math
import sys
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import torch
from safetensors import SafetensorError, safe_open

from ...core.errors import ModelError, Remedy, TrainingProError
from ...core.host import DeviceMemory
from ...train_utils import size
from .collator import Batch

# A loss this many times the smoothed one, and this many times that of guessing (the logarithm of the vocabulary's
# size), comes from broken weights: a usual outlier reaches only one of the two.
LOSS_EXPLOSION_FACTOR, GUESSING_FACTOR = 3.0, 2.0
# Only newer errors have a type of their own; CPU allocators and cuBLAS raise a RuntimeError.
_OOM_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
Result = TypeVar("Result")


@dataclass
class BatchSplitter:
    """Runs batches in parts of a size that fits into memory, which it finds by halving and remembers."""

    enabled: bool = True
    size: int = 0  # number of items that fit at once; 0 while whole batches fit

    def run(
        self,
        batch: Batch | Sequence[Any],
        run_part: Callable[[Any], Result],
        on_split: Callable[[int, int], None] = lambda failed, size: None,
    ) -> Iterator[Result]:
        """Yield the result of each part; `on_split` is called with the size that failed and the next one."""
        start = 0
        while start < len(batch):
            part = batch[start : start + (self.size or len(batch))]
            try:
                result = run_part(part)
            except (RuntimeError, MemoryError) as error:
                if not (self.enabled and len(part) > 1 and is_out_of_memory(error)):
                    raise
            else:
                yield result
                start += len(part)
                continue
            # Only here, outside of `except`: the error's traceback keeps the tensors of the failed part alive.
            free_memory()
            self.size = (len(part) + 1) // 2
            on_split(len(part), self.size)


@contextmanager
def undo_on_error(parameters: Iterable[torch.nn.Parameter]) -> Iterator[None]:
    """Add the gradients of this context to the accumulated ones; after an error, drop them."""
    # A backward pass may fail halfway. So it begins without gradients, and those of the earlier batches of the
    # step are added only once it is complete.
    accumulated = [(parameter, parameter.grad) for parameter in parameters if parameter.requires_grad]
    for parameter, _ in accumulated:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, gradient in accumulated:
            parameter.grad = gradient
        raise
    both = [(parameter, gradient) for parameter, gradient in accumulated if gradient is not None]
    added = [(gradient, parameter.grad) for parameter, gradient in both if parameter.grad is not None]
    if added:
        torch._foreach_add_(*map(list, zip(*added, strict=True)))  # one kernel on a GPU, not one for each weight
    for parameter, gradient in both:
        parameter.grad = gradient


def is_out_of_memory(error: BaseException) -> bool:
    if isinstance(error, (torch.OutOfMemoryError, MemoryError)):
        return True
    return isinstance(error, RuntimeError) and any(message in str(error).lower() for message in _OOM_MESSAGES)


@contextmanager
def explain_out_of_memory(explain: Callable[[], ModelError]) -> Iterator[None]:
    """Turn an out-of-memory error into one with remedies."""
    try:
        yield
    except (RuntimeError, MemoryError) as error:
        if not is_out_of_memory(error):
            raise
        free_memory(error)  # the figures then count the model and the LoRA only
        raise explain() from None


def out_of_memory_error(
    device: torch.device, remedies: Callable[[DeviceMemory], Sequence[Remedy]], tokens: int = 0
) -> ModelError:
    """Return the error for one example of `tokens` tokens that does not fit; 0 if no example is to blame."""
    memory = DeviceMemory("CPU", 0, 0)
    if device.type == "cuda":
        free, total = torch.cuda.mem_get_info(device)
        memory = DeviceMemory(device.type, total - free, total, torch.cuda.memory_allocated(device))
    cause = f": a single example of {tokens} tokens does not fit" if tokens else " in one forward pass"
    figures = (
        f" ({size(memory.total)} of VRAM, {size(memory.reserved)} used by the model and the LoRA, "
        f"{size(memory.total - memory.used)} free)"
    )
    helpful = remedies(memory)
    advice = [*(remedy.words for remedy in helpful), "a model that takes less memory"]
    return ModelError(
        f"Out of memory{cause}{figures if memory.total else ''}. To fix this, try: {'; '.join(advice)}.", helpful
    )


def free_memory(error: BaseException | None = None) -> None:
    """Collect garbage, including reference cycles, and return torch's cached GPU memory to the driver."""
    if error is not None:  # the frames of its traceback keep all their tensors alive
        traceback.clear_frames(error.__traceback__)
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


@contextmanager
def limit_vram(device: torch.device) -> Iterator[None]:
    """On Windows, limit this process to the free memory of the GPU within this context."""
    if sys.platform != "win32" or device.type != "cuda":
        yield
        return
    # Without the limit, the driver moves memory into RAM instead of failing, and steps take many times as long.
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    get_fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    fraction = get_fraction(device) if get_fraction else 1.0
    torch.cuda.set_per_process_memory_fraction(min(1.0, (free + reserved) / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


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


MAX_SKIPPED = 25  # after so many steps in a row, the scale of float16 is below 1


def find_divergence(loss: float, norm: float, smoothed: float | None, vocabulary: int, *, scaled: bool) -> str:
    """Return why a step must not change the weights, or an empty string; `scaled`: by the scaler of float16."""
    if not math.isfinite(loss):
        return f"the loss is {loss}"
    # Exploding gradients of float16 are usual at the start: the scaler skips the step and lowers its scale.
    if not math.isfinite(norm) and not scaled:
        return f"the gradient norm is {norm} at a loss of {loss:.4f}"
    guessing_loss = math.log(max(2, vocabulary))
    if smoothed is not None and loss > max(LOSS_EXPLOSION_FACTOR * smoothed, GUESSING_FACTOR * guessing_loss):
        return f"the loss jumped to {loss:.4g} from a smoothed loss of {smoothed:.4g}"
    return ""


def is_finite_checkpoint(folder: Path) -> bool:
    """Whether all weights in the folder of a checkpoint are finite; unreadable files count as not."""
    opened: Any = safe_open  # older versions of safetensors have no type hints for it
    try:
        for file in folder.glob("*.safetensors"):
            with opened(file, framework="pt") as tensors:
                for name in tensors.keys():  # noqa: SIM118
                    if not bool(torch.isfinite(tensors.get_tensor(name)).all()):
                        return False
    except (OSError, SafetensorError):
        return False
    return True
