"""Differences between Gradio 4.37 (the webui's version) and Gradio 6."""

from __future__ import annotations

import inspect
from functools import cache
from typing import Any

import gradio as gr

from ...core.readable import readable

GRADIO_VERSION = int(gr.__version__.split(".")[0])
RELOAD = "Reload the page."
MAX_REASON_CHARS = 200


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
        return _page_class()(title=title, css=css, analytics_enabled=False), {}
    return _page_class()(title=title, analytics_enabled=False), {"css": css}


def is_list_of_texts(value: object) -> bool:
    return value is None or (isinstance(value, list) and all(isinstance(item, str) for item in value))


@cache
def _page_class() -> type[gr.Blocks]:
    """Create the class of standalone pages, which the tab in the webui does without.

    Gradio writes a stub file whenever a subclass of Blocks is made, which would slow down the webui's start.
    """

    class Page(gr.Blocks):  # type: ignore[misc]
        """A page that answers a value of the wrong type with a sentence.

        Gradio answers some with `{"error": null}`, and breaks off where its sentence repeats half a character.
        """

        async def preprocess_data(self, *args: Any, **options: Any) -> Any:
            """Turn what a browser sent into the inputs of a handler."""
            try:
                inputs = await super().preprocess_data(*args, **options)
                for component, value in zip(args[0].inputs, inputs, strict=True):
                    if getattr(component, "multiselect", False) and not is_list_of_texts(value):
                        raise TypeError(f"{component.label} is not a list")
                return inputs
            except Exception as error:
                reason = readable(" ".join(str(error).split()))[:MAX_REASON_CHARS] or type(error).__name__
                message = f"The page received a value of the wrong type. {RELOAD} ({reason})"
                raise gr.Error(message) from error

    return Page
