"""The most memory that was held since a moment: of the graphics cards, or of this process where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import psutil
import torch

NEW_PEAK = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class Peak(Protocol):
    """Begins when it is made."""

    def most(self) -> int:
        """In bytes."""


def peak_from_now_on(place: torch.device) -> Peak:
    return _OfCards() if place.type == "cuda" else _OfProcess()


class _OfCards:
    """What torch holds of them: its own counters, for which no card is waited for."""

    def __init__(self) -> None:
        for card in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(card)

    def most(self) -> int:
        return int(sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count()))))


class _OfProcess:
    """The system's own peak once it has risen since; before that the most that was seen."""

    def __init__(self) -> None:
        begin_anew()
        self._before, self._seen = _highest(), 0

    def most(self) -> int:
        self._seen = max(self._seen, int(psutil.Process().memory_info().rss))
        highest = _highest()
        return highest if highest > self._before else self._seen


def begin_anew() -> bool:
    """From what is taken now; only Linux can, and not where /proc may only be read."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        NEW_PEAK.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident(name: str) -> int:
    """What Linux says of this process under that name; 0 where it says nothing."""
    status = STATUS.read_text(encoding="ascii", errors="replace")
    found = status.partition(name)[2].split(maxsplit=1)
    return int(found[0]) * 1024 if found else 0


def _highest() -> int:
    """The process's peak, 0 where the system tells none."""
    if sys.platform.startswith("linux"):
        return resident("VmHWM:")
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows
