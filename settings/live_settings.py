"""The settings that may change while a run goes on: one frozen whole, swapped as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

from ..core.errors import SettingsError
from .definitions import SETTINGS, Saving, Stopping, TrainingSettings
from .setting import comma_said

FACTOR = "rate_factor"
MOST = 100.0


@dataclass(frozen=True)
class Live:
    """What is kept, when a run ends, and a factor on its learning rate."""

    saving: Saving = field(default_factory=Saving)
    stopping: Stopping = field(default_factory=Stopping)
    rate_factor: float = 1.0

    @staticmethod
    def of(settings: TrainingSettings) -> Live:
        return Live(settings.saving, settings.stopping)

    def values(self) -> dict[str, Any]:
        """Flat keys and plain values."""
        flat = {f.name: getattr(part, f.name) for part in (self.saving, self.stopping) for f in fields(part)}
        return {**flat, FACTOR: self.rate_factor}

    def changed(self, values: Mapping[str, object]) -> Live:
        """These with other values; SettingsError with everything that is wrong with them."""
        read: dict[str, Any] = {}
        problems = []
        for key, value in values.items():
            try:
                read[key] = _read(key, value)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise SettingsError(problems)
        return self._with(read)

    def _with(self, read: Mapping[str, Any]) -> Live:
        saving = replace(self.saving, **{f.name: read[f.name] for f in fields(Saving) if f.name in read})
        stopping = replace(self.stopping, **{f.name: read[f.name] for f in fields(Stopping) if f.name in read})
        return Live(saving, stopping, read.get(FACTOR, self.rate_factor))


def going_on(asked: Live, *, then_asked: Mapping[str, Any], then_in_force: Mapping[str, Any]) -> Live:
    """What a run that goes on goes by: as it was when it was saved, but what the user asks differently now."""
    now = asked.values()
    kept = {key: value for key, value in then_in_force.items() if now.get(key) == then_asked.get(key)}
    return asked.changed({key: value for key, value in kept.items() if key in now})


def _read(key: str, value: object) -> Any:
    if key != FACTOR:
        if key not in Live().values():
            raise ValueError(f"'{key}' cannot be changed while a run goes on.")
        return SETTINGS[key].read(value)
    try:
        factor = float(value)  # type: ignore[arg-type]
    except (TypeError, ValueError):
        factor = -1.0
    if not 0 < factor <= MOST:
        written = f"{value!r} is not a number above 0 and up to {MOST:g}.{comma_said(value)}"
        raise ValueError(f"Factor on the learning rate: {written}")
    return factor
