"""Passes clicks on our links (interface/base/setting_links.py) to the form, and loads clicks.js in the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

import gradio as gr

from ...settings.definitions import SETTINGS
from ..base import Form, add_handler, load_script, on_load
from . import data_menu


class JsBridge:
    """A hidden text box that receives the clicks from the script."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def draw(self) -> None:
        self.request_box = gr.Textbox(label="Wish", elem_id="tp-wish", elem_classes="tp-hidden")

    def connect(self) -> None:
        """Register the event handlers, after the whole form is drawn."""
        outputs = list(self._form.components.values())
        inputs = {*self._form.inputs(), self.request_box}
        add_handler(self.request_box.change, self._fill_form, inputs, outputs, what="Filling in the form")
        on_load(None, [], js=load_script("clicks"))

    def _fill_form(self, inputs: Mapping[Any, Any]) -> dict[Any, Any]:
        request = json.loads(inputs[self.request_box] or "{}")
        values = request.get("set", {})
        if "share" in request:
            chosen = inputs[self._form.components["data"]] or []
            values = {"data": data_menu.set_share(chosen, *request["share"])}
        return self._form.updates({key: value for key, value in values.items() if key in SETTINGS})
