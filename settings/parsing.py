"""Parse plain values (from the form, a file or flags) into TrainingSettings, or report all problems at once."""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import fields
from typing import Any

from ..core.errors import SettingsError
from ..core.findings import texts
from . import other_names
from .definitions import SECTIONS, SETTINGS, TrainingSettings
from .rules import check_settings

ROW_SETTING_KEYS = (
    *("format", "columns", "system", "train_on", "train_only_after"),
    *("bad_rows", "split_exchanges", "add_bos", "add_eos", "source_max_len", "target_max_len"),
    *("chat_side", "chat_user", "chat_context", "chat_names"),
)


def row_settings(values: Mapping[str, object]) -> TrainingSettings:
    """Parse only the settings that say how rows are read, for callers that do not train; ignore all others."""
    selected = {key: values[key] for key in ROW_SETTING_KEYS if key in values}
    return training_settings({"name": "rows", "data": ["-"], **selected})


def training_settings(values: Mapping[str, object]) -> TrainingSettings:
    """Return the settings in `values`, the rest at their defaults; raise SettingsError with every problem."""
    settings, problems = settings_and_problems(values)
    if problems:
        raise SettingsError(problems)
    return settings


def settings_and_problems(values: Mapping[str, object]) -> tuple[TrainingSettings, list[str]]:
    """Return the settings, in which invalid values are the defaults, with every problem."""
    # An empty name, so that a missing one is a problem and no default.
    parsed, problems = _parse_all({"name": "", **values})
    sections = {
        name: section(**{f.name: parsed[f.name] for f in fields(section) if f.name in parsed})
        for name, section in SECTIONS.items()
    }
    settings = TrainingSettings(**sections)
    return settings, [*problems, *texts(check_settings(settings), "problem")]


def parse_keys(values: Mapping[str, object]) -> dict[str, Any]:
    """Parse single settings, for callers that do not train; raise SettingsError with every problem."""
    parsed, problems = _parse_all(values)
    if problems:
        raise SettingsError(problems)
    return {key: parsed[key] for key in values}


def _parse_all(values: Mapping[str, object]) -> tuple[dict[str, Any], list[str]]:
    parsed: dict[str, Any] = {}
    problems: list[str] = []
    for key, value in values.items():
        if problem := unknown_key_problem(key, value):
            problems.append(problem)
        elif hint := other_names.foreign_value_hint(key, value):
            problems.append(f"{SETTINGS[key].label}: {hint}")
        else:
            try:
                parsed[key] = SETTINGS[key].read(value)
            except ValueError as error:
                problems.append(str(error))
    return parsed, problems


def unknown_key_problem(key: str, value: object = None) -> str:
    """Return what to use instead of a key that is no setting of ours; empty for the others."""
    if key in SETTINGS:
        return ""
    ours, similar = other_names.our_key(key), difflib.get_close_matches(key, SETTINGS, n=1)
    hint = other_names.preset_hint(value)
    hint = hint or (f"In Training PRO, it is called {ours!r}." if ours else other_names.why_not_here(key))
    hint = hint or (f"Did you mean {similar[0]!r}?" if similar else "`script.py settings` lists all settings.")
    return f"Unknown setting {key!r}. {hint}"
