"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from __future__ import annotations

from . import markup, setting_layout
from .form import (
    Form,
    ResultInputs,
    ResultKind,
    apply_button,
    fill_button,
    link_settings,
    outdated_notice,
    outdated_style,
    reset_button,
    setting_link,
    shown_value,
)
from .handlers import (
    RELOAD,
    add_handler,
    confirm_click,
    load_script,
    page_load,
    refresh_choices,
)
from .page_context import (
    PageContext,
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
    "ResultKind",
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
    "link_settings",
    "load_script",
    "markup",
    "model_line",
    "outdated_notice",
    "outdated_style",
    "page_load",
    "refresh_choices",
    "reset_button",
    "resume_run",
    "setting_layout",
    "setting_link",
    "shown_value",
    "stop_job",
    "unanswered_choices",
]
