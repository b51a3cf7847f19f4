"""Windows moves GPU memory into system memory when a GPU is full, instead of failing: a limit, and a detector."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch

SLOWDOWN_FACTOR = 4.0
SLOW_STEPS = 3
BASELINE_STEPS = 10


@contextmanager
def limit_vram(device: torch.device) -> Iterator[None]:
    """Limit this process to the free memory of the GPU within this context, so that running out is an error."""
    if sys.platform != "win32" or device.type != "cuda":
        yield
        return
    free, total = torch.cuda.mem_get_info(device)
    reserved = torch.cuda.memory_reserved(device)
    get_fraction = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    fraction = get_fraction(device) if get_fraction else 1.0
    torch.cuda.set_per_process_memory_fraction(min(1.0, (free + reserved) / total), device)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(fraction, device)


def spill_detector(device: torch.device) -> SpillDetector | None:
    """Return a detector for a GPU under Windows; elsewhere memory does not spill."""
    return SpillDetector() if sys.platform == "win32" and device.type == "cuda" else None


@dataclass
class SpillDetector:
    """Detects spilling from the steps: the time per token becomes many times that of the first steps."""

    baseline: list[float] = field(default_factory=list)
    slow_steps: int = 0
    is_reported: bool = False

    def observe(self, seconds: float, tokens: int) -> bool:
        """Add a step; True once, after some slow steps in a row."""
        seconds_per_token = seconds / max(1, tokens)
        if len(self.baseline) < BASELINE_STEPS:
            self.baseline.append(seconds_per_token)
            return False
        self.slow_steps = self.slow_steps + 1 if seconds_per_token > SLOWDOWN_FACTOR * median(self.baseline) else 0
        if self.is_reported or self.slow_steps < SLOW_STEPS:
            return False
        self.is_reported = True
        return True


SPILL_ADVICE = (
    "Steps are many times slower than before, because VRAM is full and the driver has moved some of its contents "
    "to RAM. To fix this, close other programs that use the GPU, use a smaller True Batch Size with more Gradient "
    "Accumulation, or turn on gradient checkpointing."
)
