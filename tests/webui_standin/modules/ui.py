"""Pieces of the page that the webui lends to its extensions."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import gradio as gr

css = ".tabs {max-width: 1100px; margin: auto}"


def create_refresh_button(
    refresh_component: Any,
    refresh_method: Callable[[], object],
    refreshed_args: Callable[[], dict[str, Any]],
    elem_class: str,
    interactive: bool = True,
) -> gr.Button:
    def refresh() -> Any:
        refresh_method()
        return gr.update(**refreshed_args())

    button = gr.Button("Refresh", elem_classes=elem_class, interactive=interactive)
    button.click(refresh, None, refresh_component)
    return button
