"""Settings as files: what a run was asked for, saved so that feeding it back asks for the same run."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ..core.errors import SavingError, SettingsError
from ..core.files import descendant
from .definitions import TrainingSettings
from .legacy_settings import Exists, converted, nothing_exists

MADE_BY = "Training PRO"
SETTINGS_VERSION = 1
_ABOUT_THE_FILE = ("made_by", "settings_version")


@dataclass(frozen=True)
class Loaded:
    """The values that a file asks for, and what had to be said about reading it."""

    values: dict[str, Any]
    notes: tuple[str, ...] = ()


def as_file(settings: TrainingSettings) -> dict[str, Any]:
    """The settings as they stand in training_parameters.json."""
    return {"made_by": MADE_BY, "settings_version": SETTINGS_VERSION, **settings.values()}


def load(path: Path, datasets: Path | None = None) -> Loaded:
    """The values of a settings file, ours or an older tab's, whose data are looked for in `datasets`."""
    return from_values(_parsed(path), f"{path.name}: ", datasets=datasets)


def from_values(values: Mapping[str, object], place: str = "", *, datasets: Path | None = None) -> Loaded:
    """The same for values that are read already."""
    if values.get("settings_version", SETTINGS_VERSION) != SETTINGS_VERSION:
        version = values["settings_version"]
        raise SettingsError(
            [f"{place}made by a newer Training PRO (settings version {version}). Update this one."]
        )
    known = converted(values, _inside(datasets))
    ours = {k: v for k, v in known.values.items() if k not in _ABOUT_THE_FILE}
    return Loaded(ours, known.notes)


def _inside(folder: Path | None) -> Exists:
    if folder is None:
        return nothing_exists

    def exists(name: str) -> bool:
        try:
            path = descendant(folder, name.removesuffix("/"), "Data", follow_links=True)
        except SavingError:  # the name of no data set
            return False
        return path.is_dir() if name.endswith("/") else path.is_file()

    return exists


def _parsed(path: Path) -> dict[str, Any]:
    try:
        values = json.loads(path.read_bytes())  # UTF-16 too, in which PowerShell writes what goes into a file
    except OSError as error:
        raise SettingsError(
            [f"{path}: cannot be read ({error.strerror}). Give the path of a settings file."]
        ) from None
    except (json.JSONDecodeError, UnicodeDecodeError) as error:
        raise SettingsError([f"{path}: is not a settings file ({error}). It must be one JSON object."]) from None
    if not isinstance(values, dict):
        raise SettingsError([f"{path}: is a JSON {type(values).__name__}. A settings file is one JSON object."])
    return values
