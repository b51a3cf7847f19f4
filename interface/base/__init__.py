"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from __future__ import annotations

from . import markup, model_status, outdated, setting_layout
from .confirm import confirm_click
from .form import Form, shown_value
from .gradio_compat import RELOAD, make_blocks, private_options, stream_options
from .handlers import add_handler, on_load, page_load, refresh_choices
from .markup import table_row
from .name_status import describe_existing_name, unanswered_choices
from .outdated import ResultInputs
from .page_context import (
    PageContext,
    follow_changes,
    follow_job,
    follow_refusal,
    latest_status,
    stop_job,
)
from .resume import can_resume, resume_run
from .scripts import load_script
from .setting_links import apply_button, fill_button, link_settings, reset_button, setting_link
from .stop_button import StopButton
from .style import CSS

__all__ = [
    "CSS",
    "RELOAD",
    "Form",
    "PageContext",
    "ResultInputs",
    "StopButton",
    "add_handler",
    "apply_button",
    "can_resume",
    "confirm_click",
    "describe_existing_name",
    "fill_button",
    "follow_changes",
    "follow_job",
    "follow_refusal",
    "latest_status",
    "link_settings",
    "load_script",
    "make_blocks",
    "markup",
    "model_status",
    "on_load",
    "outdated",
    "page_load",
    "private_options",
    "refresh_choices",
    "reset_button",
    "resume_run",
    "setting_layout",
    "setting_link",
    "shown_value",
    "stop_job",
    "stream_options",
    "table_row",
    "unanswered_choices",
]
