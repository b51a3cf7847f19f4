"""Settings files: write the settings of a run and read them back, so that the same run can be started again."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from ..core.errors import SavingError, SettingsError
from ..core.files import descendant, read_small_file, with_retries
from .definitions import TrainingSettings
from .legacy_settings import LoadedSettings, convert_settings

MADE_BY = "Training PRO"
SETTINGS_VERSION = 1
# Keys of a settings file that are no settings.
_METADATA_KEYS = ("made_by", "settings_version")


def as_file(settings: TrainingSettings) -> dict[str, Any]:
    """Return the content of training_parameters.json."""
    return {"made_by": MADE_BY, "settings_version": SETTINGS_VERSION, **settings.values()}


def load_settings(path: Path, datasets: Path | None = None) -> LoadedSettings:
    """Read a settings file: ours, or an older tab's, whose datasets are looked up in `datasets`."""
    return convert_values(read_object(path), f"{path.name}: ", datasets=datasets)


def convert_values(
    values: Mapping[str, object], place: str = "", *, datasets: Path | None = None
) -> LoadedSettings:
    """Do the same for values that are already parsed."""
    if (version := values.get("settings_version", SETTINGS_VERSION)) != SETTINGS_VERSION:
        newer = f"{place}a newer version of Training PRO saved these settings (settings version {version})."
        raise SettingsError([f"{newer} Update Training PRO."])

    def exists(name: str) -> bool:
        try:
            path = descendant(datasets, name.removesuffix("/"), "Data", follow_links=True) if datasets else None
        except SavingError:  # not the name of a dataset
            return False
        return path is not None and (path.is_dir() if name.endswith("/") else path.is_file())

    result = convert_settings(values, exists)
    settings = {k: v for k, v in result.values.items() if k not in _METADATA_KEYS}
    return LoadedSettings(settings, result.notes)


def read_object(path: Path, what: str = "a settings file") -> dict[str, Any]:
    """Read a file with a single JSON object; SettingsError says what else is in it."""
    try:
        # Bytes, so that json detects UTF-16: PowerShell writes it with >.
        values = json.loads(with_retries(lambda: read_small_file(path)))
    except OSError as error:
        raise SettingsError([f"{path} can't be read ({error.strerror}). Enter the path of {what}."]) from None
    except (ValueError, RecursionError) as error:
        raise SettingsError([f"{path} is not {what} ({error}). It must be a single JSON object."]) from None
    if not isinstance(values, dict):
        raise SettingsError([f"{path} is not {what}: it does not contain a JSON object, but it must be one."])
    return values
