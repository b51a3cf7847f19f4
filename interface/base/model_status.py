"""The first line of the page: version, model, memory, and whether the model can be trained."""

from __future__ import annotations

from ...core.host import Host
from ...core.version import VERSION
from ...train_utils import size
from . import markup
from .page_context import PageContext


def html(context: PageContext) -> str:
    """The line as HTML; if training is not possible it says what to do."""
    status, title = context.host.model_status(), f"Training PRO {VERSION}"
    reason = context.read_only_reason()
    read_only = markup.paragraph(reason, quiet=True) if reason else ""
    if status.problem:
        memory = markup.paragraph(_memory(context.host), quiet=True) if _memory(context.host) else ""
        return markup.card(title, markup.paragraph(status.problem), memory, read_only, mood="fair")
    parts = [f"{status.model}, {status.precision}", _memory(context.host)]
    if status.loras:
        parts.append(f"LoRA attached: {', '.join(status.loras)}")
    return markup.card("", markup.paragraph(f"{title}: " + " · ".join(p for p in parts if p)), read_only)


def _memory(host: Host) -> str:
    """Memory in use, rounded so that small changes are not sent to the page."""
    memory = host.memory()
    if not memory.total:
        return ""
    return f"{memory.used / 1e9:.0f} of {size(memory.total)} of memory in use ({memory.device})"
