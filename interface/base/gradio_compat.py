"""Where Gradio 4.37 (the webui's) and 6 differ, said once."""

from __future__ import annotations

import inspect
from collections.abc import Callable
from typing import Any

import gradio as gr

from .handlers import handle


def private() -> dict[str, Any]:
    """Options of an event handler of ours: no part of a public API, and no clock over what it writes."""
    hidden = {"api_visibility": "private"} if _newest() else {"api_name": False, "show_api": False}
    return {"show_progress": "hidden", **hidden}


def follows() -> dict[str, Any]:
    """Options of a handler that goes on for as long as its page is open: every page has its own."""
    return {"concurrency_limit": None, **private()}


def new_choices(event: Any, menu: gr.Dropdown, choices: Callable[[], list[str]]) -> None:
    """After this event the menu has these, what is chosen staying.

    Gradio 4 keeps what is chosen by its place, and new ones move the places: it is taken out and put back.
    """
    what = f"Refreshing the menu {menu.label}"
    if _newest():
        handle(event.then, lambda: gr.update(choices=choices()), None, menu, what=what, **private())
        return
    kept = gr.State()
    emptied = handle(
        event.then, lambda chosen: (chosen, gr.update(value=None)), menu, [kept, menu], what=what, **private()
    )
    handle(
        emptied.then,
        lambda chosen: gr.update(choices=choices(), value=chosen),
        kept,
        menu,
        what=what,
        **private(),
    )


def blocks(title: str, css: str) -> tuple[gr.Blocks, dict[str, Any]]:
    """A page of our own, and what its launch() must be told besides."""
    if "css" in inspect.signature(gr.Blocks.__init__).parameters:
        return gr.Blocks(title=title, css=css, analytics_enabled=False), {}
    return gr.Blocks(title=title, analytics_enabled=False), {"css": css}


def _newest() -> bool:
    return int(gr.__version__.split(".")[0]) >= 6
