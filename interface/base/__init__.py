"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from . import form, markup
from .form import Form, shown_value
from .handlers import RELOAD, add_handler, confirm_click, load_script, page_load, refresh_choices
from .page_context import PageContext, PageEngine, ResultInputs, StopButton, follow_changes
from .style import CSS

__all__ = [
    "CSS",
    "RELOAD",
    "Form",
    "PageContext",
    "PageEngine",
    "ResultInputs",
    "StopButton",
    "add_handler",
    "confirm_click",
    "follow_changes",
    "form",
    "load_script",
    "markup",
    "page_load",
    "refresh_choices",
    "shown_value",
]
