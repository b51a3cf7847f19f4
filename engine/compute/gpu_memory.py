"""Free the memory of a failed batch, and of a finished job."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def free_memory() -> None:
    """Collect garbage, also in reference cycles, and return torch's cached GPU memory to the driver."""
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
