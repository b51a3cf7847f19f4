"""Ways through the form, as HTML: to a setting, back to its default, and to values put in with one click."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from html import escape

from ...settings.definitions import SETTINGS
from .layout import part_of, where


def use(words: str, values: Mapping[str, object], *, chosen: bool = False) -> str:
    """A button in HTML that puts these values into the form; `chosen` says that they stand there."""
    pressed = ' aria-pressed="true"' if chosen else ""
    return f'<button type="button" class="tp-use" data-tp-set="{_wish(values)}"{pressed}>{escape(words)}</button>'


def put_into(box: str, text: str, words: str) -> str:
    """A button in HTML that puts a text into a box of the page, by the id of that."""
    wish = f'data-tp-box="{escape(box)}" data-tp-text="{escape(text)}"'
    return f'<button type="button" class="tp-use" {wish}>{escape(words)}</button>'


def way_to(key: str, words: str) -> str:
    """A link in HTML that jumps to a setting."""
    title = f' title="Under {escape(folded)}"' if (folded := where(key)) else ""
    return f'<a href="#tp-{key}" data-tp-go="{key}" data-tp-part="{part_of(key)}"{title}>{escape(words)}</a>'


def way_back(key: str, default: str) -> str:
    """The way back to a default, which the script hangs onto the setting that is changed."""
    words = f"Back to the default: {default or 'nothing'}"
    wish = _wish({key: SETTINGS[key].default})
    return (
        f'<button type="button" data-tp-key="{key}" data-tp-set="{wish}" title="{escape(words)}" '
        f'aria-label="{escape(SETTINGS[key].label)}. {escape(words)}">\u21ba</button>'
    )


def _wish(values: Mapping[str, object]) -> str:
    return escape(json.dumps(dict(values)))


def pointing(text: str) -> str:
    """A sentence with the way to its setting: the label that it begins with, or that 'under' stands before."""
    label, colon, rest = text.partition(":")
    if colon and label in _KEYS:
        return f"{way_to(_KEYS[label], label)}:{pointing(rest)}"
    parts = _UNDER.split(text)  # what is between, a label, what is between ...
    return "".join(way_to(_KEYS[part], part) if n % 2 else escape(part) for n, part in enumerate(parts))


_KEYS = {setting.label: key for key, setting in SETTINGS.items()}
_UNDER = re.compile(rf"(?<=\bunder )({'|'.join(map(re.escape, sorted(_KEYS, key=len, reverse=True)))})(?!\w)")
