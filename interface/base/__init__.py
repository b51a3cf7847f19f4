"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from __future__ import annotations

from . import markup, outdated, status_line
from .form import Form
from .gradio_compat import make_blocks, private_options, stream_options
from .handlers import add_handler, on_load, page_load, refresh_choices
from .links import apply_button, fill_button, link_settings, reset_button, setting_link
from .markup import table_row
from .name_status import describe_existing_name
from .outdated import ResultInputs
from .page_context import POLL_SECONDS, PageContext, follow_job, follow_refusal, latest_status, stop_job
from .scripts import load_script
from .setting_layout import (
    ALL_ROWS,
    FOLDED_ROWS,
    LIVE_PART,
    LORA_PART,
    MEMORY_PART,
    PRESET_TABLES,
    VISIBLE_ROWS,
    part_id,
    row_id,
)
from .style import CSS

__all__ = [
    "ALL_ROWS",
    "CSS",
    "FOLDED_ROWS",
    "LIVE_PART",
    "LORA_PART",
    "MEMORY_PART",
    "POLL_SECONDS",
    "PRESET_TABLES",
    "VISIBLE_ROWS",
    "Form",
    "PageContext",
    "ResultInputs",
    "add_handler",
    "apply_button",
    "describe_existing_name",
    "fill_button",
    "follow_job",
    "follow_refusal",
    "latest_status",
    "link_settings",
    "load_script",
    "make_blocks",
    "markup",
    "on_load",
    "outdated",
    "page_load",
    "part_id",
    "private_options",
    "refresh_choices",
    "reset_button",
    "row_id",
    "setting_link",
    "status_line",
    "stop_job",
    "stream_options",
    "table_row",
]
