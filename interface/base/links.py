"""HTML links and buttons for the form: jump to a setting, reset it to its default, fill in values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape

from ...settings.definitions import SETTINGS
from .setting_layout import folded_part_id, folded_part_title


def apply_button(words: str, values: Mapping[str, object], *, chosen: bool = False) -> str:
    """An HTML button that puts these values into the form; `chosen` means that the form has them already."""
    pressed = ' aria-pressed="true"' if chosen else ""
    return f'<button type="button" class="tp-use" data-tp-set="{_json(values)}"{pressed}>{escape(words)}</button>'


def fill_button(box: str, text: str, words: str) -> str:
    """An HTML button that puts a text into the text box with the element id `box`."""
    attributes = f'data-tp-box="{escape(box)}" data-tp-text="{escape(text)}"'
    return f'<button type="button" class="tp-use" {attributes}>{escape(words)}</button>'


def setting_link(key: str, words: str) -> str:
    """An HTML link that jumps to a setting."""
    title = f' title="Under {escape(part_title)}"' if (part_title := folded_part_title(key)) else ""
    return (
        f'<a href="#tp-{key}" data-tp-go="{key}" data-tp-part="{folded_part_id(key)}"{title}>{escape(words)}</a>'
    )


def reset_button(key: str, default: str) -> str:
    """An HTML button that resets a setting to its default. clicks.js attaches it to the changed setting."""
    words = f"Back to the default: {default or 'nothing'}"
    value = _json({key: SETTINGS[key].default})
    return (
        f'<button type="button" data-tp-key="{key}" data-tp-set="{value}" title="{escape(words)}" '
        f'aria-label="{escape(SETTINGS[key].label)}. {escape(words)}">\u21ba</button>'
    )


def _json(values: Mapping[str, object]) -> str:
    return escape(json.dumps(dict(values)))


def link_settings(text: str) -> str:
    """A sentence as HTML, with a link on the label of a setting at its start and after the word 'under'."""
    label, colon, rest = text.partition(":")
    if colon and label in _KEY_BY_LABEL:
        return f"{setting_link(_KEY_BY_LABEL[label], label)}:{link_settings(rest)}"
    parts = _LABEL_AFTER_UNDER.split(text)  # alternates: text, label, text, ...
    return "".join(
        setting_link(_KEY_BY_LABEL[part], part) if n % 2 else escape(part) for n, part in enumerate(parts)
    )


_KEY_BY_LABEL = {setting.label: key for key, setting in SETTINGS.items()}
_LABELS = "|".join(map(re.escape, sorted(_KEY_BY_LABEL, key=len, reverse=True)))
_LABEL_AFTER_UNDER = re.compile(rf"(?<=\bunder )({_LABELS})(?!\w)")
