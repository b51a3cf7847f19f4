"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from __future__ import annotations

from . import markup, setting_layout
from .form import Form, shown_value
from .handlers import RELOAD, add_handler, confirm_click, load_script, page_load, refresh_choices
from .page_context import (
    PageContext,
    ResultInputs,
    StopButton,
    can_resume,
    describe_existing_name,
    follow_changes,
    follow_job,
    follow_refusal,
    model_line,
    resume_run,
    stop_job,
    unanswered_choices,
)
from .style import CSS

__all__ = [
    "CSS",
    "RELOAD",
    "Form",
    "PageContext",
    "ResultInputs",
    "StopButton",
    "add_handler",
    "can_resume",
    "confirm_click",
    "describe_existing_name",
    "follow_changes",
    "follow_job",
    "follow_refusal",
    "load_script",
    "markup",
    "model_line",
    "page_load",
    "refresh_choices",
    "resume_run",
    "setting_layout",
    "shown_value",
    "stop_job",
    "unanswered_choices",
]
