"""Strips that show the loss along a text or rows, without a LoRA and with each LoRA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...core.jobs import PerplexityMeasured, Segment
from ..base import markup

WIDTH, HEIGHT = 640, 18
EXPLANATION = (
    "{along}: the stronger the colour, the better known; all strips have the same scale. "
    "Point at a place to see how it begins."
)
ALONG_TEXT, ALONG_ROWS = (
    "Along the text, from its beginning to its end",
    "Along the rows, from the first to the last",
)


def loss_strips(results: Sequence[PerplexityMeasured]) -> str:
    """The strips as HTML, all with one scale; empty for a text with a single segment."""
    shown_results = [result for result in results if len(result.stretches) > 1]
    if not shown_results:
        return ""
    losses = [stretch.loss for result in shown_results for stretch in result.stretches]
    scale = (min(losses), max(losses))
    explanation = EXPLANATION.format(along=ALONG_ROWS if shown_results[0].rows else ALONG_TEXT)
    return markup.paragraph(explanation, quiet=True) + "".join(
        _labeled_strip(result, scale) for result in shown_results
    )


def _labeled_strip(result: PerplexityMeasured, scale: tuple[float, float]) -> str:
    return markup.paragraph(f"{lora_label(result.lora)}{_extremes(result)}") + _strip(result, scale)


def _extremes(result: PerplexityMeasured) -> str:
    """The best and the worst known segment of a text; rows have tables of their own."""
    if result.rows:
        return ""
    by_loss = sorted(result.stretches, key=lambda stretch: stretch.loss)
    return f": best known {_describe(by_loss[0])}; least known {_describe(by_loss[-1])}."


def lora_label(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def _strip(result: PerplexityMeasured, scale: tuple[float, float]) -> str:
    label = f"{lora_label(result.lora)}: how well {result.dataset} is known along its length"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" class="tp-map tp-along" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none">{"".join(_cells(result.stretches, *scale))}</svg>'
    )


def _cells(stretches: Sequence[Segment], best: float, worst: float) -> Iterator[str]:
    width = WIDTH / len(stretches)
    for n, stretch in enumerate(stretches):
        shade = (worst - stretch.loss) / max(worst - best, 1e-9)
        position = f"{n / len(stretches):.0%}"
        yield (
            f'<rect x="{n * width:.1f}" y="0" width="{width:.1f}" height="{HEIGHT}" class="tp-heat" '
            f'fill-opacity="{0.06 + 0.94 * shade:.2f}"><title>{position}: {escape(_describe(stretch))}'
            "</title></rect>"
        )


def _describe(stretch: Segment) -> str:
    return f"“{stretch.begins} …” (perplexity {stretch.perplexity:.4g}, {stretch.right:.0%} right)"
