"""Peak memory since a start time: of the GPUs, or of this process where there is none."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Protocol

import psutil
import torch

NEW_PEAK = Path("/proc/self/clear_refs")
STATUS = Path("/proc/self/status")


class Peak(Protocol):
    """Measures from its creation on."""

    def most(self) -> int:
        """Return the peak in bytes."""


def peak_from_now_on(device: torch.device) -> Peak:
    return _GpuPeak() if device.type == "cuda" else _ProcessPeak()


class _GpuPeak:
    """Memory reserved by torch, from its own counters, without synchronizing."""

    def __init__(self) -> None:
        for index in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(index)

    def most(self) -> int:
        return int(sum(map(torch.cuda.max_memory_reserved, range(torch.cuda.device_count()))))


class _ProcessPeak:
    """The peak that the system counts, once it has risen; before that the largest sample."""

    def __init__(self) -> None:
        begin_anew()
        self._before, self._seen = _system_peak(), 0

    def most(self) -> int:
        self._seen = max(self._seen, int(psutil.Process().memory_info().rss))
        peak = _system_peak()
        return peak if peak > self._before else self._seen


def begin_anew() -> bool:
    """Reset the peak of this process; possible on Linux only, and not where /proc is read-only."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        NEW_PEAK.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def resident(name: str) -> int:
    """Return a value of /proc/self/status in bytes, 0 if it is missing."""
    status = STATUS.read_text(encoding="ascii", errors="replace")
    fields = status.partition(name)[2].split(maxsplit=1)
    return int(fields[0]) * 1024 if fields else 0


def _system_peak() -> int:
    """Return the peak of the process, 0 where the system counts none."""
    if sys.platform.startswith("linux"):
        return resident("VmHWM:")
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows
