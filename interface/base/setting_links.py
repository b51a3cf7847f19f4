"""HTML links and buttons for the form: jump to a setting, reset it to its default, fill in values."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping

from markupsafe import Markup

from ...core.html import html
from ...settings.definitions import SETTINGS
from .setting_layout import folded_part_id, folded_part_title

SETTING_LINK = (
    '<a href="#tp-{{ key }}" data-tp-go="{{ key }}" data-tp-part="{{ part_id }}"'
    '{% if part_title %} title="Under {{ part_title }}"{% endif %}>{{ label }}</a>'
)

RESET_BUTTON = (
    '<button type="button" data-tp-key="{0}" data-tp-set="{1}" title="{2}" aria-label="{3}. {2}">\u21ba</button>'
)


def apply_button(label: str, values: Mapping[str, object], *, chosen: bool = False) -> Markup:
    """An HTML button that puts these values into the form; `chosen` means that the form has them already.

    The label begins with a capital letter, also if it is part of a sentence elsewhere.
    """
    pressed = Markup(' aria-pressed="true"') if chosen else ""
    template = Markup('<button type="button" class="tp-use" data-tp-set="{}"{}>{}</button>')
    return template.format(json.dumps(dict(values)), pressed, label[:1].upper() + label[1:])


def fill_button(box: str, text: str, label: str) -> Markup:
    """An HTML button that puts a text into the text box with the element id `box`."""
    template = Markup('<button type="button" class="tp-use" data-tp-box="{}" data-tp-text="{}">{}</button>')
    return template.format(box, text, label)


def setting_link(key: str, label: str) -> Markup:
    """An HTML link that jumps to a setting."""
    part_id, part_title = folded_part_id(key), folded_part_title(key)
    return html(SETTING_LINK, key=key, label=label, part_id=part_id, part_title=part_title)


def reset_button(key: str, default: str) -> Markup:
    """An HTML button that resets a setting to its default. clicks.js attaches it to the changed setting."""
    setting, title = SETTINGS[key], f"Reset to the default: {default or 'empty'}"
    return Markup(RESET_BUTTON).format(key, json.dumps({key: setting.default}), title, setting.label)


def link_settings(text: str) -> Markup:
    """A sentence as HTML, with a link on the label of a setting at its start and after the word 'under'.

    Flags of the command line behind labels are left out.
    """
    label, colon, rest = FLAG.sub("", text).partition(":")
    if colon and label in _KEY_BY_LABEL:
        return setting_link(_KEY_BY_LABEL[label], label) + ":" + link_settings(rest)
    parts = _LABEL_AFTER_UNDER.split(FLAG.sub("", text))  # alternates: text, label, text, ...
    return Markup("").join(
        setting_link(_KEY_BY_LABEL[part], part) if n % 2 else part for n, part in enumerate(parts)
    )


FLAG = re.compile(r" \(--[a-z-]+\)")
_KEY_BY_LABEL = {setting.label: key for key, setting in SETTINGS.items()}
_LABELS = "|".join(map(re.escape, sorted(_KEY_BY_LABEL, key=len, reverse=True)))
_LABEL_AFTER_UNDER = re.compile(rf"(?<=\bunder )({_LABELS})(?!\w)")
