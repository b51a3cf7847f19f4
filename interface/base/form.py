"""The form: one component per setting, made from its declaration. Handlers look values up by key."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal

import gradio as gr
from markupsafe import Markup

from ...core.html import html
from ...settings import presets
from ...settings.definitions import SETTINGS
from ...settings.setting import Setting, shortest_number, show_line_breaks
from .setting_layout import FOLDED_ROWS, part_id, row_id

SETTING_LINK = (
    '<a href="#tp-{{ key }}" data-tp-go="{{ key }}" data-tp-part="{{ part_id }}"'
    '{% if part_title %} title="Under {{ part_title }}"{% endif %}>{{ label }}</a>'
)

RESET_BUTTON = (
    '<button type="button" data-tp-key="{0}" data-tp-set="{1}" title="{2}" aria-label="{3}. {2}">\u21ba</button>'
)


def apply_button(label: str, values: Mapping[str, object], *, chosen: bool = False) -> Markup:
    """An HTML button that puts these values into the form; `chosen` means that the form has them already."""
    pressed = Markup(' aria-pressed="true"') if chosen else ""
    template = Markup('<button type="button" class="tp-use" data-tp-set="{}"{}>{}</button>')
    # The label may be part of a sentence elsewhere; on a button it begins with a capital letter.
    return template.format(json.dumps(dict(values)), pressed, label[:1].upper() + label[1:])


def fill_button(box: str, text: str, label: str) -> Markup:
    """An HTML button that puts a text into the text box with the element id `box`."""
    template = Markup('<button type="button" class="tp-use" data-tp-box="{}" data-tp-text="{}">{}</button>')
    return template.format(box, text, label)


def setting_link(key: str, label: str) -> Markup:
    """An HTML link that jumps to a setting."""
    title = next((title for title, rows in FOLDED_ROWS.items() for row in rows if key in row), "")
    return html(SETTING_LINK, key=key, label=label, part_id=part_id(title) if title else "", part_title=title)


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


ResultKind = Literal["check", "example", "probe"]
NOTICES: Mapping[ResultKind, str] = {
    "check": "Settings have changed since this check. Press Check for a new report.",
    "example": "Settings have changed since this example was shown. Press Show again.",
    "probe": "Settings have changed since this test. Press 'Test one step' or 'Fit to my GPU' again.",
}


@dataclass(frozen=True)
class ResultInputs:
    """The form and the model that a result was made from."""

    values: Mapping[str, Any]
    model: str

    def differs(self, other: ResultInputs) -> bool:
        """Whether a new result could differ from this one."""
        return self.model != other.model or bool(presets.differing_keys(self.values, other.values))


def outdated_notice(kind: ResultKind) -> Markup:
    """The notice inside a result, hidden until the style sheet of `outdated_style` shows it."""
    return Markup('<p class="tp-outdated tp-outdated-{}">{}</p>').format(kind, NOTICES[kind])


def outdated_style(kinds: Iterable[ResultKind]) -> Markup:
    """A style sheet that shows the notices of these results, and dims what is below them; empty without kinds."""
    rule = Markup(
        "<style>.tp-card .tp-outdated-{0} {{display: block !important}} "
        ".tp-card .tp-outdated-{0} ~ * {{opacity: .5}}</style>"
    )
    return Markup("").join(rule.format(kind) for kind in kinds)


@dataclass
class Form:
    """The components of the settings that have been drawn so far."""

    components: dict[str, Any] = field(default_factory=dict)

    def draw(self, *keys: str, **more: Any) -> None:
        """Draw these settings here, in this order; `more` is passed on to each component."""
        for key in keys:
            self.components[key] = make_component(SETTINGS[key], **more)

    def draw_row(self, *keys: str, **more: Any) -> None:
        """Draw these settings side by side if there is room."""
        with gr.Row(elem_id=row_id(keys)):
            self.draw(*keys, min_width=120, **more)

    def inputs(self) -> set[Any]:
        """All components, as inputs of an event. They are a set, so the handler gets a dict by component."""
        return set(self.components.values())

    def values(self, inputs: Mapping[Any, Any]) -> dict[str, Any]:
        """The values of the form, by key."""
        return {key: choice_value(SETTINGS[key], inputs[c]) for key, c in self.components.items() if c in inputs}

    def updates(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        """Component updates that put values into the form, except for those that their components can't show."""
        shown = {key: shown_value(SETTINGS[key], values[key]) for key in values if key in self.components}
        return {self.components[key]: gr.update(value=value) for key, value in shown.items() if value is not None}


def make_component(setting: Setting, **more: Any) -> Any:
    """Make the component that fits the kind of the setting."""
    common = {
        "label": setting.label,
        "info": setting.help,
        "value": display_value(setting, setting.default),
        "elem_id": f"tp-{setting.key}",
        "elem_classes": ["tp-setting", "tp-tick"] if setting.kind == "yes/no" else ["tp-setting"],
        **more,
    }
    if setting.kind == "yes/no":
        return gr.Checkbox(**common)
    if setting.kind == "choice":
        choices = [(label, value) for value, label in setting.choices.items()]
        return gr.Dropdown(**{"choices": choices, "allow_custom_value": setting.free, **common})
    if setting.kind == "names":
        return gr.Dropdown(**{"multiselect": True, **common})
    if setting.kind == "texts":
        return gr.Textbox(**{"lines": 3, **common})
    if _is_number_box(setting):
        return gr.Number(**common)  # no bounds here: Gradio would show a bare "Error" or round; we check them
    return gr.Textbox(**{"max_lines": 1, **common})


def choice_value(setting: Setting, value: Any) -> Any:
    """The value of a choice, also when the page sends its label."""
    # In Gradio 4.37 a menu with custom values sends the label when the user leaves it with the Tab key. When that
    # version goes, delete this function: the form's values are then those that its components send.
    return next((choice for choice, label in setting.choices.items() if label == value), value)


def shown_value(setting: Setting, value: Any) -> Any:
    """What the component of a setting shows for a value from a file, which may not be valid; None for nothing."""
    try:
        return display_value(setting, setting.read(value))
    except ValueError:
        can_hold = isinstance(value, (int, float)) if _is_number_box(setting) else isinstance(value, str)
        closed = setting.kind in ("yes/no", "choice", "names")
        return value if can_hold and not closed else None


def _is_number_box(setting: Setting) -> bool:
    return setting.kind == "whole" and not setting.words


def display_value(setting: Setting, value: Any) -> Any:
    """A value in the form that its component displays."""
    if setting.kind == "texts":
        return value if isinstance(value, str) else "\n".join(map(show_line_breaks, value))
    if isinstance(value, tuple):
        return " ".join(value) if setting.kind == "choice" else list(value)
    if setting.kind == "number" or (setting.kind == "whole" and setting.words):
        return value if isinstance(value, str) else shortest_number(value)
    return value
