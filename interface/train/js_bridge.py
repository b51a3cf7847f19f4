"""Clicks inside drawn HTML (interface/base/links.py) passed to the form, and our scripts in the browser."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import gradio as gr

from ...settings.definitions import SETTINGS
from ..base import Form, handle, on_load, private, script
from . import data_menu

HERE = Path(__file__).parent


class Clicks:
    """The hidden text box through which such clicks reach the form."""

    def __init__(self, form: Form) -> None:
        self._form = form

    def draw(self) -> None:
        self._wish = gr.Textbox(label="Wish", elem_id="tp-wish", elem_classes="tp-hidden")

    def connect(self) -> None:
        """After the whole form is drawn."""
        outputs = list(self._form.components.values())
        inputs = {*self._form.inputs(), self._wish}
        handle(self._wish.change, self._carried_out, inputs, outputs, what="Filling in the form", **private())
        on_load(None, [], js=script("clicks"), **private())

    def _carried_out(self, given: Mapping[Any, Any]) -> dict[Any, Any]:
        wish = json.loads(given[self._wish] or "{}")
        values = wish.get("set", {})
        if "share" in wish:
            chosen = given[self._form.components["data"]] or []
            values = {"data": data_menu.with_share(chosen, *wish["share"])}
        return self._form.shown({key: value for key, value in values.items() if key in SETTINGS})
