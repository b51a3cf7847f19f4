"""Differences between Gradio 4.37 (the webui's version) and Gradio 6."""

from __future__ import annotations

import inspect
from typing import Any

import gradio as gr

GRADIO_VERSION = int(gr.__version__.split(".")[0])


def private_options() -> dict[str, Any]:
    """Options of an event handler that is hidden from the API and shows no progress indicator."""
    hidden = {"api_visibility": "private"} if GRADIO_VERSION >= 6 else {"api_name": False, "show_api": False}
    return {"show_progress": "hidden", **hidden}


def stream_options() -> dict[str, Any]:
    """Options of a handler that streams for as long as its page is open, with no limit on how many run at once."""
    return {"concurrency_limit": None, **private_options()}


def make_blocks(title: str, css: str) -> tuple[gr.Blocks, dict[str, Any]]:
    """A standalone page, and extra arguments for its `launch()`."""
    if "css" in inspect.signature(gr.Blocks.__init__).parameters:
        return gr.Blocks(title=title, css=css, analytics_enabled=False), {}
    return gr.Blocks(title=title, analytics_enabled=False), {"css": css}
