"""Settings that have no effect with the chosen data and values are hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from ...settings.definitions import SETTINGS, keys_of
from ..base import ALL_ROWS, row_id

Kind = Literal["text", "rows"]
TEXT = ("chunking", "hard_cut", "overlap", "min_chars", "dementor_repeats", "block_ends")
ROWS = keys_of("rows")
SWITCH = keys_of("switching")
SECOND = tuple(key for key in SWITCH if key.startswith("second_"))


def beside_the_point(values: Mapping[str, Any], kinds: Collection[Kind]) -> set[str]:
    """The keys without effect; `kinds` are those of the chosen data, empty if they are not known yet."""
    hidden: set[str] = set()
    if "rows" not in kinds:
        hidden |= set(ROWS)
    if "text" not in kinds and "rows" in kinds:
        hidden |= set(TEXT)
    if values.get("max_steps") not in (None, "", 0, "0"):
        hidden.add("epochs")
    if not values.get("train_head"):
        hidden.add("head_rate")
    hidden.add("overlap" if values.get("chunking") == "dementor" else "dementor_repeats")
    hidden |= _irrelevant_switch_keys(values)
    return {key for key in hidden if not _is_invalid(key, values)}


def _is_invalid(key: str, values: Mapping[str, Any]) -> bool:
    """An invalid value is always refused, so its setting must stay visible."""
    try:
        if key in values:
            SETTINGS[key].read(values[key])
    except ValueError:
        return True
    return False


def _irrelevant_switch_keys(values: Mapping[str, Any]) -> set[str]:
    if values.get("batching") != "length_then_order":
        return set(SWITCH)
    hidden = set() if values.get("switch_pairs") else set(SECOND)
    by_loss = values.get("switch_after") == "loss"
    return hidden | {key for key in SWITCH if (key.endswith("_at") if by_loss else "_loss_" in key)}


def style(keys: Collection[str]) -> str:
    """A style sheet that hides these settings, and rows without any visible setting.

    The settings are hidden, not removed, so their values stay in the form in every version of Gradio.
    """
    selectors = [f"#tp-{key}" for key in sorted(keys)]
    selectors += [f"#{row_id(row)}" for row in ALL_ROWS if set(row) <= set(keys)]
    return f"<style>{', '.join(selectors)} {{display: none !important}}</style>" if selectors else ""
