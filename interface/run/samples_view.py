"""The sample answers of a run: a table of steps by prompts."""

from __future__ import annotations

from collections.abc import Sequence

from ...core.jobs import Sampled
from ..base import cells

LATEST = 4  # steps besides the first one; samples.jsonl has all of them


def html(samples: Sequence[Sampled]) -> str:
    """One column per prompt; the answers without the LoRA first, then the steps, newest first."""
    if not samples:
        return ""
    prompts = list(dict.fromkeys(s.prompt for s in samples))
    steps = sorted({s.step for s in samples if s.step or not s.without}, reverse=True)
    shown = steps if len(steps) <= LATEST + 1 else [*steps[:LATEST], steps[-1]]
    answers = {(s.step, s.prompt): s.text for s in samples}
    without_lora = {s.prompt: s.without for s in samples if s.without}
    rows = [cells("td", [f"step {step}", *(answers.get((step, p), "") for p in prompts)]) for step in shown]
    first = (
        [cells("td", ["without the LoRA", *(without_lora.get(p, "") for p in prompts)])] if without_lora else []
    )
    header = cells("th", ["", *prompts])
    return (
        f'<div class="tp-wide"><table class="tp-table tp-samples">{header}{"".join([*first, *rows])}</table></div>'
    )
