"""Shared parts of the page: Gradio versions, event handlers, styles, the form, HTML pieces and links."""

from __future__ import annotations

from . import fallback, markup, outdated, status_line
from .form import Form
from .gradio_compat import blocks, follows, new_choices, private
from .handlers import handle, on_load
from .layout import ALL_ROWS, FOLDED, LIVE, LORA, MEMORY, TABLES, VISIBLE, part_id, row_id
from .links import pointing, put_into, use, way_back, way_to
from .markup import cells
from .name_status import taken
from .outdated import MadeFrom
from .page_context import PAUSE_SECONDS, Joined, news, refused, said_last
from .scripts import script
from .style import CSS

__all__ = [
    "ALL_ROWS",
    "CSS",
    "FOLDED",
    "LIVE",
    "LORA",
    "MEMORY",
    "PAUSE_SECONDS",
    "TABLES",
    "VISIBLE",
    "Form",
    "Joined",
    "MadeFrom",
    "blocks",
    "cells",
    "fallback",
    "follows",
    "handle",
    "markup",
    "new_choices",
    "news",
    "on_load",
    "outdated",
    "part_id",
    "pointing",
    "private",
    "put_into",
    "refused",
    "row_id",
    "said_last",
    "script",
    "status_line",
    "taken",
    "use",
    "way_back",
    "way_to",
]
