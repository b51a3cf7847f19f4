"""Live settings: those that may change during a run. A frozen object that is replaced as a whole."""

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
    """Saving and stopping rules of a run, and a factor on its learning rate."""

    saving: Saving = field(default_factory=Saving)
    stopping: Stopping = field(default_factory=Stopping)
    rate_factor: float = 1.0

    @staticmethod
    def of(settings: TrainingSettings) -> Live:
        return Live(settings.saving, settings.stopping)

    def values(self) -> dict[str, Any]:
        """Return flat keys and plain values."""
        flat = {
            f.name: getattr(section, f.name) for section in (self.saving, self.stopping) for f in fields(section)
        }
        return {**flat, FACTOR: self.rate_factor}

    def changed(self, values: Mapping[str, object]) -> Live:
        """Return a copy with these values; raise SettingsError with all problems at once."""
        parsed: dict[str, Any] = {}
        problems = []
        for key, value in values.items():
            try:
                parsed[key] = _read(key, value)
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise SettingsError(problems)
        return self._with(parsed)

    def _with(self, parsed: Mapping[str, Any]) -> Live:
        saving = replace(self.saving, **{f.name: parsed[f.name] for f in fields(Saving) if f.name in parsed})
        stopping = replace(self.stopping, **{f.name: parsed[f.name] for f in fields(Stopping) if f.name in parsed})
        return Live(saving, stopping, parsed.get(FACTOR, self.rate_factor))


def going_on(live: Live, *, then_asked: Mapping[str, Any], then_in_force: Mapping[str, Any]) -> Live:
    """Return the live settings of a resumed run: those it was saved with, except what the user changed since."""
    requested = live.values()
    unchanged = {key: value for key, value in then_in_force.items() if requested.get(key) == then_asked.get(key)}
    return live.changed({key: value for key, value in unchanged.items() if key in requested})


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
        message = f"{value!r} is not a number above 0 and up to {MOST:g}.{comma_said(value)}"
        raise ValueError(f"Factor on the learning rate: {message}")
    return factor
