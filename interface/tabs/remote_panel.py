"""Buttons for the chosen run while it is in progress, in this process or in another one."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import gradio as gr

from ...core.host import Folders
from ...core.jobs import progress_text
from ...records.folder import LoraEntry
from ...records.remote import REQUESTS, read_progress, send_request
from ..base import PageContext, add_handler, markup
from .use_panel import require_choice

LABELS = {
    "stop": "Stop",
    "pause": "Pause",
    "resume": "Resume",
    "save": "Save checkpoint",
    "sample": "Sample",
    "evaluate": "Evaluate",
}


class RemotePanel:
    """Stop, Pause or Resume, Save checkpoint, Sample and Evaluate, while the chosen run is in progress."""

    def __init__(self, context: PageContext) -> None:
        self._context = context

    def draw(self) -> None:
        with gr.Row(elem_classes="tp-buttons", visible=False, elem_id="tp-runs-remote") as self.row:
            self._buttons = {request: gr.Button(label, size="sm") for request, label in LABELS.items()}

    @property
    def outputs(self) -> list[gr.components.Component | gr.Row]:
        """What `updates` changes."""
        return [self.row, self._buttons["pause"], self._buttons["resume"]]

    def connect(self, chosen: gr.Textbox, status: gr.HTML) -> None:
        for request, button in self._buttons.items():
            on_click = partial(self._on_request, request, chosen)
            add_handler(button.click, on_click, {chosen}, [status, *self.outputs[1:]], what=button.value)

    def updates(self, run: LoraEntry | None) -> tuple[Any, Any, Any]:
        if run is None or run.status != "in progress" or self._context.read_only_reason():
            return gr.update(visible=False), gr.update(), gr.update()
        progress = read_progress(run.name, self._context.host.folders)
        return gr.update(visible=True), *_pause_updates(paused=progress.paused)

    def _on_request(self, request: str, chosen: Any, inputs: Mapping[Any, Any]) -> tuple[str, Any, Any]:
        name = require_choice(inputs[chosen]).partition("/")[0]
        buttons = gr.update(), gr.update()

        def send(folders: Folders) -> str:
            nonlocal buttons
            send_request(name, request, folders)
            if request in ("pause", "resume"):
                buttons = _pause_updates(paused=request == "pause")
            return f"{name} {REQUESTS[request].words}."

        return self._context.run_disk_action(send), *buttons


def _pause_updates(*, paused: bool) -> tuple[Any, Any]:
    """Show Pause or Resume."""
    return gr.update(visible=not paused), gr.update(visible=paused)


def progress_line(run: LoraEntry, folders: Folders) -> str:
    """How far a run is that is in progress; empty for any other."""
    if run.status != "in progress":
        return ""
    progress = progress_text(read_progress(run.name, folders))
    return markup.paragraph(f"In progress: {progress.rstrip('.')}.")
