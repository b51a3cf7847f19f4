"""Live settings: those that may change during a run. A frozen object that is replaced as a whole."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from ..core.errors import SettingsError
from .definitions import SETTINGS, SavingSettings, StoppingSettings, section_keys
from .setting import Setting

LIVE_KEYS = section_keys("saving", "stopping")
RATE_FACTOR = "rate_factor"
RATE_SETTING = Setting(RATE_FACTOR, "live", "number", 1.0, "Learning rate factor", "", bounds=(1e-6, 100.0))


@dataclass(frozen=True)
class LiveSettings:
    """Saving and stopping rules of a run, and a factor on its learning rate."""

    saving: SavingSettings = field(default_factory=SavingSettings)
    stopping: StoppingSettings = field(default_factory=StoppingSettings)
    rate_factor: float = 1.0

    def values(self) -> dict[str, Any]:
        """Return flat keys and plain values."""
        return {**vars(self.saving), **vars(self.stopping), RATE_FACTOR: self.rate_factor}

    def changed(self, values: Mapping[str, object]) -> LiveSettings:
        """Return a copy with these values; raise SettingsError with all problems at once."""
        parsed: dict[str, Any] = {}
        problems = []
        live = {RATE_FACTOR: RATE_SETTING, **{key: SETTINGS[key] for key in LIVE_KEYS}}
        for key, value in values.items():
            try:
                parsed[key] = live[key].read(value)
            except KeyError:
                problems.append(f"'{key}' can't be changed during a run.")
            except ValueError as error:
                problems.append(str(error))
        if problems:
            raise SettingsError(problems)
        factor = parsed.pop(RATE_FACTOR, self.rate_factor)
        saving = {key: value for key, value in parsed.items() if SETTINGS[key].section == "saving"}
        stopping = {key: value for key, value in parsed.items() if key not in saving}
        return LiveSettings(replace(self.saving, **saving), replace(self.stopping, **stopping), factor)


def resumed_settings(
    live: LiveSettings, *, then_asked: Mapping[str, Any], then_in_force: Mapping[str, Any]
) -> LiveSettings:
    """Return the live settings of a resumed run: those it was saved with, except what the user changed since."""
    # What the form asks for now and asked for then is no change of the user's, so what was in force then stays.
    requested = live.values()
    unchanged = {key: value for key, value in then_in_force.items() if requested.get(key) == then_asked.get(key)}
    return live.changed({key: value for key, value in unchanged.items() if key in requested})
