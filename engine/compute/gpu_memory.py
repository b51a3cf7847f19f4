"""Memory that nothing needs any more goes back: that of a batch that failed, and that of a job when it is over."""

from __future__ import annotations

import gc
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

import torch


def free_memory() -> None:
    """What nothing holds any more, also where its parts hold each other; on a card others can have it then."""
    gc.collect()
    if torch.cuda.is_available():
        torch.cuda.empty_cache()


def let_go_of(error: BaseException) -> None:
    """An error holds the functions that it came through, and they what they were working with."""
    traceback.clear_frames(error.__traceback__)
    free_memory()


@contextmanager
def freed_afterwards() -> Iterator[None]:
    """Whatever is done inside, and however it ends: nothing of it stays in memory."""
    try:
        yield
    except BaseException as error:
        let_go_of(error)
        raise
    free_memory()
