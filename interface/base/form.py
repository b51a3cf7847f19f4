"""The form: one component per setting, made from its declaration. Handlers look values up by key."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import gradio as gr

from ...settings.definitions import SETTINGS
from ...settings.setting import Setting, shortest_number, show_line_breaks
from .setting_layout import row_id


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
