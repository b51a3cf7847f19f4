"""Machine telemetry during a run: peak memory, the sensors of the GPUs, and memory that spills on Windows."""

from __future__ import annotations

import math
import sys
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from statistics import median

import psutil
import torch

from ...core.jobs import Advice, EventLog, MachineUse, Step, peak_memory_of
from .acceleration import trim_memory

INTERVAL_SECONDS = 5.0  # a reading takes 0.14 ms on a CPU (docs/engine.md)
SLOW_SENSOR_SECONDS = 0.05  # a sensor that takes this long is not read again
# Memory spills if so many steps in a row take so many times as long per token as the median of the first steps.
SLOWDOWN_FACTOR, SLOW_STEPS, BASELINE_STEPS = 4.0, 3, 10
SPILL_ADVICE = (
    "Steps are many times slower than before, because VRAM is full and the driver has moved some of its contents "
    "to RAM. To fix this, close other programs that use the GPU, use a smaller True Batch Size with more Gradient "
    "Accumulation, or turn on gradient checkpointing."
)


class MachineMonitor:
    """Samples the machine between steps, every few seconds, and logs what has changed."""

    def __init__(self, device: torch.device, log: EventLog) -> None:
        self._on_gpu, self._log = device.type == "cuda", log
        # Windows moves GPU memory into system memory when a GPU is full, instead of failing.
        self._may_spill = sys.platform == "win32" and self._on_gpu
        self._first_times: list[float] = []
        self._slow_steps = 0
        self._disabled_sensors: set[str] = set()
        self._sampled_at, self._last = -math.inf, MachineUse(cards=0, peak=0)
        self._peak = peak_memory_of(log.since(0))  # of earlier run segments
        _reset_peak(self._on_gpu)
        self._system_peak = 0 if self._on_gpu else _system_peak()

    def observe_step(self, progress: Step) -> None:
        """Observe a finished step, with advice if memory spills."""
        seconds_per_token = progress.seconds / max(1, progress.tokens)
        if self._may_spill and len(self._first_times) < BASELINE_STEPS:
            self._first_times.append(seconds_per_token)
        elif self._may_spill:
            is_slow = seconds_per_token > SLOWDOWN_FACTOR * median(self._first_times)
            self._slow_steps = self._slow_steps + 1 if is_slow else 0
            if self._slow_steps == SLOW_STEPS:
                self._may_spill = False  # said once
                self._log.append(Advice(text=SPILL_ADVICE))
        self.observe()

    def observe(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._sampled_at < INTERVAL_SECONDS and not at_once:
            return
        self._sampled_at = now
        if self._on_gpu:  # by torch's own counters, without synchronizing
            gpus = [gpu for gpu in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(gpu)]
            self._peak = max(self._peak, _sum_over_gpus(torch.cuda.max_memory_reserved))
            use = MachineUse(
                cards=max(1, len(gpus)),
                peak=self._peak,
                total=sum(torch.cuda.get_device_properties(gpu).total_memory for gpu in gpus),
                busy=self._read_sensor("utilization", gpus, lambda values: sum(values) / len(values)),
                celsius=self._read_sensor("temperature", gpus, max),
                watts=self._read_sensor("power_draw", gpus, lambda values: sum(values) / 1000),
            )
        else:
            # Where the peak that the system counts was reached before the run, the highest sample has to do.
            peak = _system_peak()
            self._peak = max(self._peak, peak if peak > self._system_peak else psutil.Process().memory_info().rss)
            use = MachineUse(cards=0, peak=self._peak, total=psutil.virtual_memory().total)
        if use != replace(self._last, at=use.at):
            self._log.append(use)
            self._last = use

    def _read_sensor(self, name: str, gpus: list[int], combine: Callable[[Sequence[float]], float]) -> int | None:
        """Read a sensor of all GPUs as one value; None if it failed or was slow the last time."""
        if name in self._disabled_sensors or not gpus:
            return None
        began, value = time.monotonic(), None
        # Torch reads them through a package that is rarely installed (nvidia-ml-py, amdsmi) and may raise
        # anything.
        with suppress(Exception):
            value = round(combine([float(getattr(torch.cuda, name)(gpu)) for gpu in gpus]))
        if value is None or time.monotonic() - began > SLOW_SENSOR_SECONDS:
            self._disabled_sensors.add(name)
        return value


def measure_peak(step: Callable[[], None], device: torch.device) -> int:
    """Return by how many bytes the memory rises during a step; 0 where that cannot be measured."""
    on_gpu = device.type == "cuda"
    trim_memory()
    can_measure = _reset_peak(on_gpu)
    before = _sum_over_gpus(torch.cuda.memory_allocated) if on_gpu else psutil.Process().memory_info().rss
    step()
    peak = _sum_over_gpus(torch.cuda.max_memory_allocated) if on_gpu else _system_peak()
    return peak - before if can_measure else 0


def _sum_over_gpus(count_bytes: Callable[[int], int]) -> int:
    return int(sum(map(count_bytes, range(torch.cuda.device_count()))))


def _reset_peak(on_gpu: bool) -> bool:
    """Reset the peak of the GPUs or of this process; that of a process only on Linux, if /proc is writable."""
    if on_gpu:
        for gpu in range(torch.cuda.device_count()):
            torch.cuda.reset_peak_memory_stats(gpu)
        return True
    if not sys.platform.startswith("linux"):
        return False
    try:
        Path("/proc/self/clear_refs").write_text("5", encoding="ascii")  # 5: the peak (proc_pid_clear_refs(5))
    except OSError:
        return False
    return True


def _system_peak() -> int:
    """Return the peak of the process, 0 where the system counts none."""
    if not sys.platform.startswith("linux"):
        return int(getattr(psutil.Process().memory_info(), "peak_wset", 0))  # Windows
    status = Path("/proc/self/status").read_text(encoding="ascii", errors="replace")
    fields = status.partition("VmHWM:")[2].split(maxsplit=1)  # in kB
    return int(fields[0]) * 1024 if fields else 0
