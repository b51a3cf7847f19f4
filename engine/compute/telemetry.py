"""What a run takes of the machine while it trains: memory at most, and what a graphics card tells of itself."""

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
TOO_SLOW_SECONDS = 0.05  # a driver that needs so long for an answer is not asked again

Sensor = Callable[[int], float]


class MachineWatch:
    """Looks between two steps, once in a few seconds, and writes down what has changed."""

    def __init__(self, place: torch.device, log: EventLog) -> None:
        self._on_card, self._log = place.type == "cuda", log
        self._earlier = most_memory(log.since(0))  # of the parts before this one
        self._peak = peak_from_now_on(place)
        self._sensors = _Sensors()
        self._looked, self._last = -math.inf, MachineUse(cards=0, peak=0)

    def look(self, *, at_once: bool = False) -> None:
        now = time.monotonic()
        if now - self._looked < EVERY_SECONDS and not at_once:
            return
        self._looked = now
        found = self._of_cards() if self._on_card else MachineUse(cards=0, peak=self._most(), total=_all_memory())
        if found != replace(self._last, at=found.at):
            self._log.append(found)
            self._last = found

    def _most(self) -> int:
        return max(self._earlier, self._peak.most())

    def _of_cards(self) -> MachineUse:
        cards = [card for card in range(torch.cuda.device_count()) if torch.cuda.memory_reserved(card)]
        return MachineUse(
            cards=max(1, len(cards)),
            peak=self._most(),
            total=sum(torch.cuda.get_device_properties(card).total_memory for card in cards),
            busy=self._sensors.read("utilization", cards, lambda found: sum(found) / len(found)),
            celsius=self._sensors.read("temperature", cards, max),
            watts=self._sensors.read("power_draw", cards, lambda found: sum(found) / 1000),
        )


class _Sensors:
    """torch asks the driver through a package that is mostly not there (nvidia-ml-py, amdsmi)."""

    def __init__(self) -> None:
        self._silent: set[str] = set()

    def read(self, name: str, cards: list[int], together: Callable[[list[float]], float]) -> int | None:
        """Of all cards together; None where one says nothing, or took long to say it the last time."""
        if name in self._silent or not cards:
            return None
        began = time.monotonic()
        found = _asked(getattr(torch.cuda, name, None), cards)
        if found is None or time.monotonic() - began > TOO_SLOW_SECONDS:
            self._silent.add(name)
        return None if found is None else round(together(found))


def _asked(sensor: Sensor | None, cards: Iterable[int]) -> list[float] | None:
    if sensor is None:
        return None
    try:
        return [float(sensor(card)) for card in cards]
    except Exception:  # noqa: BLE001 - whatever a driver's package raises, no reading is worth a run
        return None


def _all_memory() -> int:
    return int(psutil.virtual_memory().total)
