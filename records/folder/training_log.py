"""training_log.json: the record of a run. Flat keys come first because other programs read them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIRST_KEYS = (
    "base_model_name",
    "base_model_class",
    "base_loaded_in_4bit",
    "base_loaded_in_8bit",
    "projections",
    "loss",
    "learning_rate",
    "epoch",
    "current_steps",
)


def log_entry(values: Mapping[str, Any]) -> dict[str, Any]:
    """Put the keys that other programs read first, then all others."""
    return {**{k: values.get(k) for k in _FIRST_KEYS}, **{k: v for k, v in values.items() if k not in _FIRST_KEYS}}
