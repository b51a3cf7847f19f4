"""On Windows a full graphics card spills into system memory instead of failing: a limit, and how it is told."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from statistics import median

import torch

SLOWER = 4.0
IN_A_ROW = 3
FIRST_STEPS = 10


@contextmanager
def kept_on_the_card(place: torch.device) -> Iterator[None]:
    """Inside, this process takes no more than is free on the card: too much is an error, and can be mended."""
    if sys.platform != "win32" or place.type != "cuda":
        yield
        return
    free, total = torch.cuda.mem_get_info(place)
    ours = torch.cuda.memory_reserved(place)
    asked = getattr(torch.cuda, "get_per_process_memory_fraction", None)
    before = asked(place) if asked else 1.0
    torch.cuda.set_per_process_memory_fraction(min(1.0, (free + ours) / total), place)
    try:
        yield
    finally:
        torch.cuda.set_per_process_memory_fraction(before, place)


@dataclass
class Spilling:
    """Told from the steps themselves: for each token they take many times as long as they did at first."""

    usual: list[float] = field(default_factory=list)
    slow: int = 0
    told: bool = False

    def look(self, seconds: float, tokens: int) -> bool:
        """True once, when some steps in a row were that slow."""
        pace = seconds / max(1, tokens)
        if len(self.usual) < FIRST_STEPS:
            self.usual.append(pace)
            return False
        self.slow = self.slow + 1 if pace > SLOWER * median(self.usual) else 0
        if self.told or self.slow < IN_A_ROW:
            return False
        self.told = True
        return True


SPILLS = (
    "The steps have become many times slower: the graphics card is full, and the driver has moved memory into "
    "that of the system. What helps most: close what else uses the card, a smaller True Batch Size with more "
    "Gradient Accumulation, gradient checkpointing."
)
