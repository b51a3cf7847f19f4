"""Differences between Gradio 4.37 (the webui's version) and Gradio 6."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gradio as gr

from .handlers import add_handler


def private_options() -> dict[str, Any]:
    """Options of an event handler that is hidden from the API and shows no progress indicator."""
    hidden = {"api_visibility": "private"} if _is_gradio_6() else {"api_name": False, "show_api": False}
    return {"show_progress": "hidden", **hidden}


def stream_options() -> dict[str, Any]:
    """Options of a handler that streams for as long as its page is open, with no limit on how many run at once."""
    return {"concurrency_limit": None, **private_options()}


def refresh_choices(event: Any, menu: gr.Dropdown, choices: Callable[[], list[str]]) -> None:
    """After this event, give the menu new choices and keep its selection.

    Gradio 4 stores the selection by index, and new choices shift the indices. Therefore the selection is removed
    first and put back afterwards.
    """
    action = f"Refreshing the menu {menu.label}"
    if _is_gradio_6():
        add_handler(event.then, lambda: gr.update(choices=choices()), None, menu, what=action, **private_options())
        return
    selection = gr.State()
    cleared = add_handler(
        event.then,
        lambda selected: (selected, gr.update(value=None)),
        menu,
        [selection, menu],
        what=action,
        **private_options(),
    )
    add_handler(
        cleared.then,
        lambda selected: gr.update(choices=choices(), value=selected),
        selection,
        menu,
        what=action,
        **private_options(),
    )


def make_blocks(title: str, css: str) -> tuple[gr.Blocks, dict[str, Any]]:
    """A standalone page, and extra arguments for its `launch()`."""
    if "css" in inspect.signature(gr.Blocks.__init__).parameters:
        return gr.Blocks(title=title, css=css, analytics_enabled=False), {}
    return gr.Blocks(title=title, analytics_enabled=False), {"css": css}


def _is_gradio_6() -> bool:
    return int(gr.__version__.split(".")[0]) >= 6
