"""A line about how rows are read, for other tabs than Train."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.parsing import HOW_ROWS_ARE_READ

ALWAYS = ("format", "train_on")


def rows_read(values: Mapping[str, Any]) -> str:
    """Name format, loss mask, and the settings that differ from their defaults."""
    present = {key: values[key] for key in HOW_ROWS_ARE_READ if key in values}
    changed = presets.apart({key: SETTINGS[key].default for key in present}, present)
    keys = [key for key in present if key in (*ALWAYS, *changed)]
    text = "; ".join(f"{SETTINGS[key].label}: {presets.shown(key, present[key])}" for key in keys)
    return f"The rows are read as the Train tab says, and what would be learned counts. {text}."
