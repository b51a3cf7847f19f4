"""The first line of the page: our version, the model, its memory, and whether it can be trained."""

from __future__ import annotations

from ...core.host import Host
from ...core.version import VERSION
from ...train_utils import size
from . import markup
from .page_context import Joined


def html(joined: Joined) -> str:
    """The line; where training is not possible it says what to do."""
    standing, head = joined.host.standing(), f"Training PRO {VERSION}"
    reason = joined.host_says_read_only()
    only_look = markup.paragraph(reason, quiet=True) if reason else ""
    if standing.problem:
        memory = markup.paragraph(_memory(joined.host), quiet=True) if _memory(joined.host) else ""
        return markup.card(head, markup.paragraph(standing.problem), memory, only_look, mood="fair")
    parts = [f"{standing.model}, {standing.precision}", _memory(joined.host)]
    if standing.loras:
        parts.append(f"LoRA on: {', '.join(standing.loras)}")
    return markup.card("", markup.paragraph(f"{head}: " + " · ".join(p for p in parts if p)), only_look)


def _memory(host: Host) -> str:
    """Rounded, so that a page is not sent every breath of the memory."""
    memory = host.memory()
    if not memory.total:
        return ""
    return f"{memory.used / 1e9:.0f} of {size(memory.total)} memory in use ({memory.device})"
