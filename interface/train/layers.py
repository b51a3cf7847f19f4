"""A picker for the layers of the model that get a LoRA."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...settings.definitions import SETTINGS
from ..base import Form, PageContext, add_handler, markup


class LayerPicker:
    """A button that lists the layers, and a checkbox for each layer."""

    def __init__(self, context: PageContext, form: Form) -> None:
        self._context, self._form = context, form

    def draw(self) -> None:
        self._list_button = gr.Button("Pick from this model's layers", size="sm", elem_id="tp-layers")
        self._message = gr.HTML(elem_id="tp-layers-said", elem_classes="tp-said")
        self._boxes = gr.CheckboxGroup([], label="Layers", visible=False, elem_id="tp-layers-picked")

    def connect(self) -> None:
        targets = self._form.components["targets"]
        outputs, clears = [self._message, self._boxes], {self._boxes: gr.update(visible=False)}
        options: dict[str, Any] = {"what": "Listing the layers", "clears": clears}
        add_handler(self._list_button.click, self._on_list, targets, outputs, **options)
        add_handler(self._boxes.input, self._on_pick, self._boxes, targets, what="Picking layers")

    def _on_list(self, targets: str | None) -> tuple[str, Any]:
        try:
            layers = self._context.engine.layers(self._context.host)
        except TrainingProError as error:
            return markup.problem(str(error)), gr.update(visible=False)
        choices = [(f"{name} ({count})", name) for name, count in layers.items()]
        chosen = [name for name in (targets or "").split() if name in layers]
        message = "The layers that you select here replace the value of Target modules."
        return markup.paragraph(message, quiet=True), gr.update(choices=choices, value=chosen, visible=True)

    def _on_pick(self, chosen: list[str]) -> str:
        return " ".join(chosen) or str(SETTINGS["targets"].default)
