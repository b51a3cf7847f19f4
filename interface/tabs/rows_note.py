"""How rows are read, in a line, where that is asked for on another tab."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.parsing import HOW_ROWS_ARE_READ

ALWAYS = ("format", "train_on")


def rows_read(values: Mapping[str, Any]) -> str:
    """The usual two, and what is not at its default."""
    there = {key: values[key] for key in HOW_ROWS_ARE_READ if key in values}
    apart = presets.apart({key: SETTINGS[key].default for key in there}, there)
    keys = [key for key in there if key in (*ALWAYS, *apart)]
    told = "; ".join(f"{SETTINGS[key].label}: {presets.shown(key, there[key])}" for key in keys)
    return f"The rows are read as the Train tab says, and what would be learned counts. {told}."
