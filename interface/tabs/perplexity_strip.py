"""Strips that show the loss along a text or rows, without a LoRA and with each LoRA."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from markupsafe import Markup

from ...core.jobs import PerplexityMeasured, Segment
from ..base import markup

WIDTH, HEIGHT = 640, 18
STRIP = (
    '<svg viewBox="0 0 {width} {height}" class="tp-map tp-along" role="img" aria-label="{label}" '
    'preserveAspectRatio="none">{cells}</svg>'
)
CELL = (
    '<rect x="{x:.1f}" y="0" width="{width:.1f}" height="{height}" class="tp-heat" '
    'fill-opacity="{opacity:.2f}"><title>{tooltip}</title></rect>'
)
EXPLANATION = (
    "{along}: the stronger the colour, the better known; all strips have the same scale. "
    "Point at a place to see how it begins."
)
ALONG_TEXT, ALONG_ROWS = (
    "Along the text, from its beginning to its end",
    "Along the rows, from the first to the last",
)


def loss_strips(results: Sequence[PerplexityMeasured]) -> Markup:
    """The strips as HTML, all with one scale; empty for a text with a single segment."""
    shown_results = [result for result in results if len(result.stretches) > 1]
    if not shown_results:
        return Markup()
    losses = [segment.loss for result in shown_results for segment in result.stretches]
    scale = (min(losses), max(losses))
    explanation = EXPLANATION.format(along=ALONG_ROWS if shown_results[0].rows else ALONG_TEXT)
    strips = Markup("").join(_labeled_strip(result, *scale) for result in shown_results)
    return markup.paragraph(explanation, quiet=True) + strips


def _labeled_strip(result: PerplexityMeasured, best: float, worst: float) -> Markup:
    label = f"{lora_label(result.lora)}: how well {result.dataset} is known along its length"
    cells = Markup("").join(_cells(result.stretches, best, worst))
    caption = markup.paragraph(f"{lora_label(result.lora)}{_extremes(result)}")
    return caption + Markup(STRIP).format(width=WIDTH, height=HEIGHT, label=label, cells=cells)


def _extremes(result: PerplexityMeasured) -> str:
    """The best and the worst known segment of a text; rows have tables of their own."""
    if result.rows:
        return ""
    by_loss = sorted(result.stretches, key=lambda segment: segment.loss)
    return f": best known {_describe(by_loss[0])}; least known {_describe(by_loss[-1])}."


def lora_label(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def _cells(segments: Sequence[Segment], best: float, worst: float) -> Iterator[Markup]:
    width = WIDTH / len(segments)
    for n, segment in enumerate(segments):
        opacity = 0.06 + 0.94 * (worst - segment.loss) / max(worst - best, 1e-9)
        tooltip = f"{n / len(segments):.0%}: {_describe(segment)}"
        yield Markup(CELL).format(x=n * width, width=width, height=HEIGHT, opacity=opacity, tooltip=tooltip)


def _describe(segment: Segment) -> str:
    return f"“{segment.begins} …” (perplexity {segment.perplexity:.4g}, {segment.right:.0%} right)"
