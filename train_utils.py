"""The arithmetic and the names of a run: steps, warm-up, accumulation, smoothed loss, durations."""

from __future__ import annotations

import math
import re
from dataclasses import dataclass

SMOOTHING = 0.9
MAX_WARMUP = 100


@dataclass(frozen=True)
class StepPlan:
    """How many steps a run takes; one step is one change of the weights."""

    examples: int
    batch_size: int
    accumulation: int
    epochs: float
    max_steps: int = 0

    @property
    def batches(self) -> int:
        """Batches in an epoch; the last one may be smaller."""
        return math.ceil(self.examples / self.batch_size)

    @property
    def accumulated(self) -> int:
        """The accumulation in force: never more batches than an epoch has."""
        return max(1, min(self.accumulation, self.batches))

    @property
    def per_step(self) -> int:
        return self.batch_size * self.accumulated

    @property
    def steps_per_epoch(self) -> int:
        return max(1, math.ceil(self.batches / self.accumulated))

    @property
    def steps(self) -> int:
        if self.max_steps:
            return self.max_steps
        return max(1, _rounded_up(self.epochs * self.steps_per_epoch))

    def warmup(self, asked: float) -> int:
        """Warm-up in steps: from 1 on it is steps, below 1 a share of the run, then with a limit."""
        if asked >= 1:
            return int(asked)
        return min(_rounded_up(asked * self.steps), MAX_WARMUP, self.steps_per_epoch)


def _rounded_up(steps: float) -> int:
    """Up to whole steps, but not because a product such as 0.07 * 100 comes out a hair above 7."""
    return math.ceil(steps - 1e-9)


def smoothed(previous: float | None, loss: float) -> float:
    """The smoothed loss: it begins as the first step's loss and then moves a tenth of the way."""
    return loss if previous is None else SMOOTHING * previous + (1 - SMOOTHING) * loss


def duration(seconds: float) -> str:
    """A length of time in words: '0.25 s', '45 s', '3 min 20 s', '2 h 05 min'."""
    if 0 < seconds < 9.95:
        return f"{seconds:.2g} s"
    whole = max(0, round(seconds))
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def size(byte_count: float) -> str:
    """A size in words, in the units that file managers show: '98 MB', '1.4 GB'."""
    for unit, scale in (("GB", 1e9), ("MB", 1e6), ("kB", 1e3)):
        count = byte_count / scale
        if count >= 0.9995:  # what would read as 1000 of a smaller unit
            return f"{count:.3g} {unit}" if count < 999.5 else f"{count:.0f} {unit}"
    return f"{int(byte_count)} bytes"


def natural_key(name: str) -> list[tuple[int, int, str]]:
    """Sorts 'chapter 2' before 'chapter 10'."""
    parts = re.split(r"(\d+)", name.casefold())
    return [(1, int(p), "") if p.isdecimal() else (0, 0, p) for p in parts]


def checkpoint_name(step: int, reason: str) -> str:
    """The folder of a checkpoint: 'checkpoint-120', 'checkpoint-120-user', 'checkpoint-120-epoch-2'."""
    return f"checkpoint-{step}" + (f"-{reason}" if reason else "")


def checkpoint_step(folder_name: str) -> int | None:
    """The step that a checkpoint's folder name says, or None for another folder."""
    found = re.fullmatch(r"checkpoint-(\d+)(?:-.+)?", folder_name)
    return int(found[1]) if found else None
