"""Results of the Perplexity tab in detail: the loss along a text or rows, and the least and best known rows."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from ...core.jobs import PerplexityMeasured, RowScores, Segment
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
STRIPS_EXPLANATION = (
    "{along}: the stronger the color, the lower the perplexity. All strips use the same scale. Hover "
    "over a strip to see the text at that point."
)
ALONG_TEXT, ALONG_ROWS = (
    "Along the text, from start to end",
    "In row order, from first to last",
)
ROW_COLUMNS = ("", "row", "context", "measured text", "perplexity", "tokens correct", "tokens")
ROWS_EXPLANATION = (
    "A row with a much higher perplexity than the others may contain an error. Look at this row in its file. "
    "The ranking takes into account that the perplexity of short rows varies more by chance."
)


def loss_strips(results: Sequence[PerplexityMeasured]) -> Markup:
    """The strips as HTML, all with one scale; empty for a text with a single segment."""
    shown_results = [result for result in results if len(result.stretches) > 1]
    if not shown_results:
        return Markup()
    losses = [segment.loss for result in shown_results for segment in result.stretches]
    scale = (min(losses), max(losses))
    explanation = STRIPS_EXPLANATION.format(along=ALONG_ROWS if shown_results[0].rows else ALONG_TEXT)
    strips = Markup("").join(_labeled_strip(result, *scale) for result in shown_results)
    return markup.paragraph(explanation, quiet=True) + strips


def _labeled_strip(result: PerplexityMeasured, best: float, worst: float) -> Markup:
    label = f"{lora_label(result.lora)}: perplexity along {result.dataset}, from start to end"
    cells = Markup("").join(_cells(result.stretches, best, worst))
    caption = markup.paragraph(f"{lora_label(result.lora)}{_extremes(result)}")
    return caption + Markup(STRIP).format(width=WIDTH, height=HEIGHT, label=label, cells=cells)


def _extremes(result: PerplexityMeasured) -> str:
    """The best and the worst known segment of a text; rows have tables of their own."""
    if result.rows:
        return ""
    by_loss = sorted(result.stretches, key=lambda segment: segment.loss)
    return f": lowest perplexity {_describe(by_loss[0])}; highest perplexity {_describe(by_loss[-1])}."


def lora_label(lora: str) -> str:
    return "Without a LoRA" if lora == "-" else lora


def _cells(segments: Sequence[Segment], best: float, worst: float) -> Iterator[Markup]:
    width = WIDTH / len(segments)
    for n, segment in enumerate(segments):
        opacity = 0.06 + 0.94 * (worst - segment.loss) / max(worst - best, 1e-9)
        tooltip = f"{n / len(segments):.0%}: {_describe(segment)}"
        yield Markup(CELL).format(x=n * width, width=width, height=HEIGHT, opacity=opacity, tooltip=tooltip)


def _describe(segment: Segment) -> str:
    return f"“{segment.begins} …” (perplexity {segment.perplexity:.4g}, {segment.right:.0%} of tokens correct)"


def row_tables(measured: Sequence[PerplexityMeasured]) -> Markup:
    """The tables as HTML, all but the first folded; empty for a single row or a text."""
    results = [result for result in measured if result.least_known]
    if not results:
        return Markup()
    rows_without = {row.place: row for result in results if result.lora == "-" for row in result.rows}
    tables = Markup("").join(
        _table(result, rows_without if result.lora != "-" else {}, is_open=result is results[0])
        for result in results
    )
    return markup.paragraph(ROWS_EXPLANATION, quiet=True) + tables


def _table(result: PerplexityMeasured, rows_without: Mapping[str, RowScores], *, is_open: bool) -> Markup:
    """One table; `rows_without` has the same rows measured without a LoRA, if that was requested."""
    header = (*ROW_COLUMNS, "without a LoRA") if rows_without else ROW_COLUMNS
    title = f"{lora_label(result.lora)}: rows with the highest and lowest perplexity"
    template = Markup('<details{}><summary>{}</summary><div class="tp-rows">{}</div></details>')
    return template.format(" open" if is_open else "", title, markup.table(header, _rows(result, rows_without)))


def _rows(result: PerplexityMeasured, rows_without: Mapping[str, RowScores]) -> Iterator[tuple[str, ...]]:
    for label, rows in (("highest perplexity", result.least_known), ("lowest perplexity", result.best_known)):
        for n, row in enumerate(rows):
            cells = (label if n == 0 else "", row.place, row.read, row.begins, *_figures(row))
            yield (*cells, _perplexity_without_lora(rows_without.get(row.place))) if rows_without else cells


def _figures(row: RowScores) -> tuple[str, ...]:
    return f"{row.perplexity:.4g}", f"{row.right:.0%}", f"{row.tokens:,}"


def _perplexity_without_lora(row: RowScores | None) -> str:
    """Empty if the row is not among the reported ones: very long lists are cut."""
    return f"{row.perplexity:.4g}" if row else ""
