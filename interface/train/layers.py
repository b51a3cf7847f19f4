"""The model's own layers, to pick those that the LoRA sits on."""

from __future__ import annotations

from typing import Any

import gradio as gr

from ...core.errors import TrainingProError
from ...settings.definitions import SETTINGS
from ..base import Form, Joined, handle, markup, private


class Layers:
    """A button that lists them, and a box for each."""

    def __init__(self, joined: Joined, form: Form) -> None:
        self._joined, self._form = joined, form

    def draw(self) -> None:
        self._list = gr.Button("Pick from this model's layers", size="sm", elem_id="tp-layers")
        self._said = gr.HTML(elem_id="tp-layers-said", elem_classes="tp-said")
        self._boxes = gr.CheckboxGroup([], label="Layers", visible=False, elem_id="tp-layers-picked")

    def connect(self) -> None:
        targets = self._form.components["targets"]
        handle(
            self._list.click,
            self._listed,
            targets,
            [self._said, self._boxes],
            what="Listing the layers",
            says=self._said,
            clears={self._boxes: gr.update(visible=False)},
            **private(),
        )
        handle(self._boxes.input, self._picked, self._boxes, targets, what="Picking layers", **private())

    def _listed(self, targets: str | None) -> tuple[str, Any]:
        try:
            found = self._joined.engine.layers(self._joined.host)
        except TrainingProError as error:
            return markup.problem(str(error)), gr.update(visible=False)
        choices = [(f"{name} ({count})", name) for name, count in found.items()]
        chosen = [name for name in (targets or "").split() if name in found]
        said = "Those that are ticked get a LoRA, in place of what Which layers says."
        return markup.paragraph(said, quiet=True), gr.update(choices=choices, value=chosen, visible=True)

    def _picked(self, chosen: list[str]) -> str:
        return " ".join(chosen) or str(SETTINGS["targets"].default)
