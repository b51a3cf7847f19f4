"""What the model answers in the course of a run: a table of steps by prompts."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.jobs import Sampled
from ..base import cells

LATEST = 4  # steps, beside the first: the whole stands in samples.jsonl


def html(sampled: Sequence[Sampled]) -> str:
    """A column a prompt; without the LoRA first, then the newest step and those before it."""
    if not sampled:
        return ""
    prompts = list(dict.fromkeys(s.prompt for s in sampled))
    steps = sorted({s.step for s in sampled if s.step or not s.without}, reverse=True)
    shown = steps if len(steps) <= LATEST + 1 else [*steps[:LATEST], steps[-1]]
    answers = {(s.step, s.prompt): s.text for s in sampled}
    bare = {s.prompt: s.without for s in sampled if s.without}
    rows = [cells("td", [f"step {step}", *(answers.get((step, p), "") for p in prompts)]) for step in shown]
    first = [cells("td", ["without the LoRA", *(bare.get(p, "") for p in prompts)])] if bare else []
    head = cells("th", ["", *prompts])
    return (
        f'<div class="tp-wide"><table class="tp-table tp-samples">{head}{"".join([*first, *rows])}</table></div>'
    )
