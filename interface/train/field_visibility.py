"""Settings that have no effect with the chosen data and values are hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from markupsafe import Markup

from ...settings.definitions import SETTINGS, section_keys
from ..base import setting_layout

DataKind = Literal["text", "rows"]
TEXT_KEYS = ("chunking", "hard_cut", "overlap", "min_chars", "dementor_repeats", "block_ends")
ROW_KEYS = section_keys("rows")
SWITCH_KEYS = section_keys("switching")
SECOND_SWITCH_KEYS = tuple(key for key in SWITCH_KEYS if key.startswith("second_"))


def irrelevant_keys(values: Mapping[str, Any], kinds: Collection[DataKind]) -> set[str]:
    """The keys without effect; `kinds` are those of the chosen data, empty if they are not known yet."""
    hidden: set[str] = set()
    if "rows" not in kinds:
        hidden |= set(ROW_KEYS)
    if "text" not in kinds and "rows" in kinds:
        hidden |= set(TEXT_KEYS)
    if values.get("max_steps") not in (None, "", 0, "0"):
        hidden.add("epochs")
    if not values.get("train_head") and values.get("modules_to_save") in (None, "", "none"):
        hidden.add("head_rate")
    if values.get("logging_steps") in (None, "", "auto"):
        hidden.add("logging_first_step")
    if values.get("report_to") in (None, "", "none"):
        hidden.add("run_name")
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
        return set(SWITCH_KEYS)
    hidden = set() if values.get("switch_pairs") else set(SECOND_SWITCH_KEYS)
    by_loss = values.get("switch_after") == "loss"
    return hidden | {key for key in SWITCH_KEYS if (key.endswith("_at") if by_loss else "_loss_" in key)}


def style(keys: Collection[str]) -> Markup:
    """A style sheet that hides these settings, and rows without any visible setting.

    The settings are hidden, not removed, so their values stay in the form in every version of Gradio.
    """
    selectors = [f"#tp-{key}" for key in sorted(keys)]
    selectors += [f"#{setting_layout.row_id(row)}" for row in setting_layout.ALL_ROWS if set(row) <= set(keys)]
    template = "{} {{display: none !important}} {} {{content: ' (not used with this dataset and these settings)'}}"
    links = [f'#tp-find-results [data-tp-go="{key}"]::after' for key in sorted(keys)]
    rules = template.format(", ".join(selectors), ", ".join(links)) if keys else ""
    return Markup("<style>{}</style>").format(Markup(rules)) if rules else Markup("")
