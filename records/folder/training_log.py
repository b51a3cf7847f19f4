"""training_log.json and training_graph.json: how a run went, flat keys first because others read those."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

_FIRST = (
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


def log_entry(known: Mapping[str, Any]) -> dict[str, Any]:
    """The keys that other programs look for, then everything else that is known."""
    return {**{k: known.get(k) for k in _FIRST}, **{k: v for k, v in known.items() if k not in _FIRST}}
