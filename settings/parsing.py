"""From plain values (a form, a file, flags) to TrainingSettings, or to all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..core.errors import SettingsError
from .definitions import SECTIONS, SETTINGS, TrainingSettings
from .rules import problems as rule_problems

HOW_ROWS_ARE_READ = (
    *("format", "columns", "system", "train_on", "train_only_after"),
    *("bad_rows", "add_bos", "add_eos"),
)


def row_settings(values: Mapping[str, object]) -> TrainingSettings:
    """How rows are read, for whoever trains nothing; what else `values` say is passed over."""
    read = {key: values[key] for key in HOW_ROWS_ARE_READ if key in values}
    return training_settings({"name": "rows", "data": ["-"], **read})


def training_settings(values: Mapping[str, object]) -> TrainingSettings:
    """The settings that `values` ask for, the rest at its default; SettingsError with every problem."""
    read, problems = _read_all(values)
    settings = _assembled(read)
    problems += rule_problems(settings)
    if problems:
        raise SettingsError(problems)
    return settings


def _read_all(values: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    read: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in {"name": "", **values}.items():
        if sentence := _unknown(key):
            problems.append(sentence)
            continue
        try:
            read[key] = SETTINGS[key].read(value)
        except ValueError as error:
            problems.append(str(error))
    return read, problems


def _unknown(key: str) -> str:
    if key in SETTINGS:
        return ""
    near = difflib.get_close_matches(key, SETTINGS, n=1)
    hint = f" Did you mean '{near[0]}'?" if near else " `script.py settings` lists them all."
    return f"There is no setting '{key}'.{hint}"


def _assembled(read: Mapping[str, Any]) -> TrainingSettings:
    parts = {
        name: section(**{f.name: read[f.name] for f in fields(section) if f.name in read})
        for name, section in SECTIONS.items()
    }
    return TrainingSettings(**parts)
