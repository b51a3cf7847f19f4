"""Out of memory: free it, run a batch in parts that fit, or end with an error that says what helps."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any, TypeVar

import torch

from ...core.errors import ModelError, Remedy
from ...core.host import DeviceMemory
from ...train_utils import size
from .collator import Batch
from .step_sums import StepSums

_OOM_MESSAGES = ("out of memory", "can't allocate memory", "not enough memory", "cublas_status_alloc_failed")
Result = TypeVar("Result")


@dataclass
class BatchSplitter:
    """Runs batches in parts of a size that fits into memory, which it finds by halving and remembers."""

    enabled: bool = True
    size: int = 0
    """Number of items that fit at once; 0 while whole batches fit."""

    def can_split(self, part: Batch | Sequence[Any]) -> bool:
        return self.enabled and len(part) > 1

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
                if not (self.can_split(part) and is_out_of_memory(error)):
                    raise
            else:
                yield result
                start += len(part)
                continue
            free_memory()  # only here, since the error keeps the tensors of the failed part alive
            self.size = (len(part) + 1) // 2
            on_split(len(part), self.size)


@contextmanager
def undo_on_error(parameters: Iterable[torch.nn.Parameter], sums: StepSums) -> Iterator[None]:
    """Add the gradients of this context to the accumulated ones; after an error, drop them and what was summed."""
    accumulated = [(parameter, parameter.grad) for parameter in parameters if parameter.requires_grad]
    sums_before = sums.snapshot()
    for parameter, _ in accumulated:
        parameter.grad = None
    try:
        yield
    except BaseException:
        for parameter, gradient in accumulated:
            parameter.grad = gradient
        sums.restore(sums_before)
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
        release_error(error)  # the figures then count the model and the LoRA only
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
    advice = [*(remedy.words for remedy in helpful), "loading the model in 4-bit"]
    return ModelError(
        f"Out of memory{cause}{figures if memory.total else ''}. To fix this, try: {'; '.join(advice)}.", helpful
    )


def free_memory() -> None:
    """Collect garbage, including reference cycles, and return torch's cached GPU memory to the driver."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def release_error(error: BaseException) -> None:
    """Clear the frames of a traceback, which keep all their tensors alive, and free the memory."""
    traceback.clear_frames(error.__traceback__)
    free_memory()


@contextmanager
def free_memory_afterwards() -> Iterator[None]:
    """Free the memory used within this context, however it ends."""
    try:
        yield
    except BaseException as error:
        release_error(error)
        raise
    free_memory()
