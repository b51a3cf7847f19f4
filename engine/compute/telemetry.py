"""Machine telemetry during a run: peak memory, and the sensors of the GPUs."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Iterable
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import psutil
import torch

from ...core.jobs import Advice, EventLog, MachineUse, Progress, peak_memory_of
from .windows_vram import SPILL_ADVICE, spill_detector

INTERVAL_SECONDS = 5.0
SLOW_SENSOR_SECONDS = 0.05  # a sensor that takes this long is not read again

Sensor = Callable[[int], float]


class MachineMonitor:
    """Samples the machine between steps, every few seconds, and logs what has changed."""

    def __init__(self, device: torch.device, log: EventLog) -> None:
        self._on_gpu, self._log = device.type == "cuda", log
        self._earlier_peak = peak_memory_of(log.since(0))  # of earlier run segments
        self._peak = start_peak_meter(device)
        self._spill = spill_detector(device)
        self._sensors = _Sensors()
        self._sampled_at, self._last = -math.inf, MachineUse(cards=0, peak=0)

    def observe_step(self, progress: Progress) -> None:
        """Observe a finished step, with advice if memory spills."""
        if self._spill is not None and self._spill.observe(progress.seconds, progress.tokens):
            self._log.append(Advice(text=SPILL_ADVICE))
        self.observe()

    def observe(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._sampled_at < INTERVAL_SECONDS and not at_once:
            return
        self._sampled_at = now
        use = (
            self._gpu_use()
            if self._on_gpu
            else MachineUse(cards=0, peak=self._peak_bytes(), total=_total_memory())
        )
        if use != replace(self._last, at=use.at):
            self._log.append(use)
            self._last = use

    def _peak_bytes(self) -> int:
        return max(self._earlier_peak, self._peak.most())

    def _gpu_use(self) -> MachineUse:
        gpus = [gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(gpu)]
        return MachineUse(
            cards=max(1, len(gpus)),
            peak=self._peak_bytes(),
            total=sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus),
            busy=self._sensors.read("utilization", gpus, lambda values: sum(values) / len(values)),
            celsius=self._sensors.read("temperature", gpus, max),
            watts=self._sensors.read("power_draw", gpus, lambda values: sum(values) / 1000),
        )


class _Sensors:
    """GPU sensors, which torch reads through a package that is rarely installed (nvidia-ml-py, amdsmi)."""

    def __init__(self) -> None:
        self._disabled: set[str] = set()

    def read(self, name: str, gpus: list[int], combine: Callable[[list[float]], float]) -> int | None:
        """Read a sensor of all GPUs as one value; None if it failed or was slow the last time."""
        if name in self._disabled or not gpus:
            return None
        began = time.monotonic()
        values = _read_sensor(getattr(torch.cuda, name, None), gpus)
        if values is None or time.monotonic() - began > SLOW_SENSOR_SECONDS:
            self._disabled.add(name)
        return None if values is None else round(combine(values))


def _read_sensor(sensor: Sensor | None, gpus: Iterable[int]) -> list[float] | None:
    if sensor is None:
        return None
    try:
        return [float(sensor(gpu)) for gpu in gpus]
    except Exception:  # noqa: BLE001 - the driver's package may raise anything, and no reading is worth a run
        return None


def _total_memory() -> int:
    return int(psutil.virtual_memory().total)


CLEAR_REFS = Path("/proc/self/clear_refs")
PROCESS_STATUS = Path("/proc/self/status")


class PeakMeter(Protocol):
    """Measures from its creation on."""

    def most(self) -> int:
        """Return the peak in bytes."""


def start_peak_meter(device: torch.device) -> PeakMeter:
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
        reset_peak()
        self._before, self._seen = _system_peak(), 0

    def most(self) -> int:
        self._seen = max(self._seen, int(psutil.Process().memory_info().rss))
        peak = _system_peak()
        return peak if peak > self._before else self._seen


def reset_peak() -> bool:
    """Reset the peak of this process; possible on Linux only, and not where /proc is read-only."""
    if not sys.platform.startswith("linux"):
        return False
    try:
        CLEAR_REFS.write_text("5", encoding="ascii")
    except OSError:
        return False
    return True


def read_process_memory(name: str) -> int:
    """Return a value of /proc/self/status in bytes, 0 if it is missing."""
    status = PROCESS_STATUS.read_text(encoding="ascii", errors="replace")
    fields = status.partition(name)[2].split(maxsplit=1)
    return int(fields[0]) * 1024 if fields else 0


def _system_peak() -> int:
    """Return the peak of the process, 0 where the system counts none."""
    if sys.platform.startswith("linux"):
        return read_process_memory("VmHWM:")
    return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows
