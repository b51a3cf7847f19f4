"""The form: one component a setting, made from its declaration; handlers get them by name, never by place."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

import gradio as gr

from ...settings.definitions import SETTINGS
from ...settings.setting import Setting
from .layout import row_id


class Form:
    """The components of the settings that are drawn so far."""

    def __init__(self) -> None:
        self.components: dict[str, Any] = {}

    def draw(self, *keys: str, **more: Any) -> None:
        """Draw these settings here, in this order; `more` goes to the component (choices of Data)."""
        for key in keys:
            self.components[key] = component(SETTINGS[key], **more)

    def draw_row(self, *keys: str, **more: Any) -> None:
        """Draw these side by side, where there is room."""
        with gr.Row(elem_id=row_id(keys)):
            self.draw(*keys, min_width=120, **more)

    def inputs(self) -> set[Any]:
        """For an event: all components, so that its handler gets a dict by component."""
        return set(self.components.values())

    def values(self, given: Mapping[Any, Any]) -> dict[str, Any]:
        """What the page says, by key."""
        return {key: as_meant(SETTINGS[key], given[c]) for key, c in self.components.items() if c in given}

    def shown(self, values: Mapping[str, Any]) -> dict[Any, Any]:
        """Updates that put values into the form."""
        return {
            self.components[key]: gr.update(value=as_shown(SETTINGS[key], value))
            for key, value in values.items()
            if key in self.components
        }

    def undrawn(self) -> Iterable[str]:
        """Settings that no part of the page has drawn."""
        return SETTINGS.keys() - self.components.keys()


def component(setting: Setting, **more: Any) -> Any:
    """The component that fits the kind of the setting."""
    common = {
        "label": setting.label,
        "info": setting.help,
        "value": as_shown(setting, setting.default),
        "elem_id": f"tp-{setting.key}",
        "elem_classes": ["tp-setting", "tp-tick"] if setting.kind == "yes/no" else ["tp-setting"],
        **more,
    }
    if setting.kind == "yes/no":
        return gr.Checkbox(**common)
    if setting.kind == "choice":
        choices = [(words, value) for value, words in setting.choices.items()]
        return gr.Dropdown(**{"choices": choices, "allow_custom_value": setting.free, **common})
    if setting.kind == "names":
        return gr.Dropdown(**{"multiselect": True, **common})
    if setting.kind == "texts":
        return gr.Textbox(**{"lines": 3, **common})
    if setting.kind == "whole" and not setting.words:
        return gr.Number(**common)  # bounds and whole numbers are ours to tell: Gradio says "Error", or rounds
    return gr.Textbox(**{"max_lines": 1, **common})


def as_meant(setting: Setting, value: Any) -> Any:
    """A menu of Gradio 4.37 that takes names of one's own gives the words of a choice when it is passed by Tab."""
    return next((chosen for chosen, words in setting.choices.items() if words == value), value)


def as_shown(setting: Setting, value: Any) -> Any:
    """A value as its component shows it."""
    if setting.kind == "texts":
        return value if isinstance(value, str) else "\n".join(text.replace("\n", "\\n") for text in value)
    if isinstance(value, tuple):
        return " ".join(value) if setting.kind == "choice" else list(value)
    if setting.kind == "number" or (setting.kind == "whole" and setting.words):
        return value if isinstance(value, str) else f"{value:g}"
    return value
