"""Where in a text or among rows it is known: a strip for the model without a LoRA and for each with one."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from html import escape

from ...core.jobs import PerplexityFound, Stretch
from ..base import markup

WIDTH, HEIGHT = 640, 18
EXPLAINED = (
    "{along}: the stronger the colour, the better known; all strips have the same scale. "
    "Point at a place to see how it begins."
)
TEXT, ROWS = "Along the text, from its beginning to its end", "Along the rows, from the first to the last"


def known_along(found: Sequence[PerplexityFound]) -> str:
    """Strips that can be compared; nothing for a text of one stretch."""
    told = [one for one in found if len(one.stretches) > 1]
    if not told:
        return ""
    losses = [stretch.loss for one in told for stretch in one.stretches]
    scale = (min(losses), max(losses))
    said = EXPLAINED.format(along=ROWS if told[0].rows else TEXT)
    return markup.paragraph(said, quiet=True) + "".join(_told(one, scale) for one in told)


def _told(one: PerplexityFound, scale: tuple[float, float]) -> str:
    return markup.paragraph(f"{name(one.lora)}{_both_ends(one)}") + _strip(one, scale)


def _both_ends(one: PerplexityFound) -> str:
    """Of rows they are told by themselves."""
    if one.rows:
        return ""
    by_loss = sorted(one.stretches, key=lambda stretch: stretch.loss)
    return f": best known {_words(by_loss[0])}; least known {_words(by_loss[-1])}."


def name(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def _strip(one: PerplexityFound, scale: tuple[float, float]) -> str:
    label = f"{name(one.lora)}: how well {one.dataset} is known along its length"
    return (
        f'<svg viewBox="0 0 {WIDTH} {HEIGHT}" class="tp-map tp-along" role="img" aria-label="{escape(label)}" '
        f'preserveAspectRatio="none">{"".join(_cells(one.stretches, *scale))}</svg>'
    )


def _cells(stretches: Sequence[Stretch], best: float, worst: float) -> Iterator[str]:
    width = WIDTH / len(stretches)
    for number, stretch in enumerate(stretches):
        known = (worst - stretch.loss) / max(worst - best, 1e-9)
        place = f"{number / len(stretches):.0%}"
        yield (
            f'<rect x="{number * width:.1f}" y="0" width="{width:.1f}" height="{HEIGHT}" class="tp-heat" '
            f'fill-opacity="{0.06 + 0.94 * known:.2f}"><title>{place}: {escape(_words(stretch))}</title></rect>'
        )


def _words(stretch: Stretch) -> str:
    return f"“{stretch.begins} …” (perplexity {stretch.perplexity:.4g}, {stretch.right:.0%} right)"
