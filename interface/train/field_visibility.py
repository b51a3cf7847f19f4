"""Settings that have no effect with the chosen data and values are hidden."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, Literal

from markupsafe import Markup

from ...settings.definitions import SETTINGS
from ...settings.effects import Situation, without_effect
from ..base import setting_layout

DataKind = Literal["text", "rows"]


def irrelevant_keys(values: Mapping[str, Any], kinds: Collection[DataKind]) -> set[str]:
    """The keys without effect; `kinds` are those of the chosen data, empty if they are not known yet."""
    hidden = without_effect(Situation.of_form(values, kinds), in_form=True)
    return {key for key in hidden if not _is_invalid(key, values)}


def _is_invalid(key: str, values: Mapping[str, Any]) -> bool:
    """An invalid value is always refused, so its setting must stay visible."""
    try:
        if key in values:
            SETTINGS[key].read(values[key])
    except ValueError:
        return True
    return False


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
