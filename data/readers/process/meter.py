"""Memory and CPU time of another process, by psutil where it is installed, else by Linux's /proc."""

from __future__ import annotations

import importlib
import os
from contextlib import suppress
from pathlib import Path
from typing import Any


class Meter:
    """Measures a process; what can't be measured is 0."""

    def __init__(self, pid: int) -> None:
        self._folder = Path("/proc") / str(pid)
        self._process: Any = None
        with suppress(ImportError):
            psutil = importlib.import_module("psutil")
            with suppress(psutil.Error):
                self._process = psutil.Process(pid)

    def memory(self) -> int:
        """Bytes of memory in use."""
        with suppress(Exception):  # the process has ended
            if self._process:
                return int(self._process.memory_info().rss)
            return int((self._folder / "statm").read_text().split()[1]) * os.sysconf("SC_PAGESIZE")
        return 0

    def seconds(self) -> float:
        """Seconds of CPU time."""
        with suppress(Exception):
            if self._process:
                times = self._process.cpu_times()
                return float(times.user + times.system)
            fields = (self._folder / "stat").read_text().rpartition(")")[2].split()
            return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")
        return 0.0
