"""What of the form concerns the chosen data and choices: the rest is not shown."""

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
    """The keys that change nothing as the form stands; `kinds` are of the chosen data, none for not known yet."""
    gone: set[str] = set()
    if "rows" not in kinds:
        gone |= set(ROWS)
    if "text" not in kinds and "rows" in kinds:
        gone |= set(TEXT)
    if values.get("max_steps") not in (None, "", 0, "0"):
        gone.add("epochs")
    if not values.get("train_head"):
        gone.add("head_rate")
    gone.add("overlap" if values.get("chunking") == "dementor" else "dementor_repeats")
    gone |= _of_switching(values)
    return {key for key in gone if not _is_wrong(key, values)}


def _is_wrong(key: str, values: Mapping[str, Any]) -> bool:
    """What is typed wrongly is refused wherever it stands, so it has to be seen."""
    try:
        if key in values:
            SETTINGS[key].read(values[key])
    except ValueError:
        return True
    return False


def _of_switching(values: Mapping[str, Any]) -> set[str]:
    if values.get("batching") != "length_then_order":
        return set(SWITCH)
    gone = set() if values.get("switch_pairs") else set(SECOND)
    by_loss = values.get("switch_after") == "loss"
    return gone | {key for key in SWITCH if (key.endswith("_at") if by_loss else "_loss_" in key)}


def style(gone: Collection[str]) -> str:
    """A style sheet that hides these settings, and the rows in which nothing is left. Hidden, not taken off the
    page: what stands in them stays in the form on every version of Gradio."""
    hidden = [f"#tp-{key}" for key in sorted(gone)]
    hidden += [f"#{row_id(row)}" for row in ALL_ROWS if set(row) <= set(gone)]
    return f"<style>{', '.join(hidden)} {{display: none !important}}</style>" if hidden else ""
