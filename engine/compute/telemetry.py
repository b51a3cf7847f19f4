"""Machine telemetry during a run: peak memory, and the sensors of the GPUs."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterable
from dataclasses import replace

import psutil
import torch

from ...core.jobs import EventLog, MachineUse, most_memory
from .peak_memory import peak_from_now_on

EVERY_SECONDS = 5.0
TOO_SLOW_SECONDS = 0.05  # a sensor that takes this long is not read again

Sensor = Callable[[int], float]


class MachineWatch:
    """Samples the machine between steps, every few seconds, and logs what has changed."""

    def __init__(self, device: torch.device, log: EventLog) -> None:
        self._on_gpu, self._log = device.type == "cuda", log
        self._earlier_peak = most_memory(log.since(0))  # of earlier run segments
        self._peak = peak_from_now_on(device)
        self._sensors = _Sensors()
        self._sampled_at, self._last = -math.inf, MachineUse(cards=0, peak=0)

    def observe(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._sampled_at < EVERY_SECONDS and not at_once:
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
        if values is None or time.monotonic() - began > TOO_SLOW_SECONDS:
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
