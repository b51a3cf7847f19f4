"""Tables of the rows with the highest and the lowest perplexity, without a LoRA and with each LoRA."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

from markupsafe import Markup

from ...core.jobs import PerplexityMeasured, RowScores
from ..base import markup
from .perplexity_strip import lora_label

COLUMNS = ("", "row", "what is read", "what counts", "perplexity", "tokens right", "tokens")
EXPLANATION = (
    "A row that is known far less than the others may be a bad one: look at it in its file. One of few tokens "
    "stands at either end only where it is far from the rest."
)


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
    return markup.paragraph(EXPLANATION, quiet=True) + tables


def _table(result: PerplexityMeasured, rows_without: Mapping[str, RowScores], *, is_open: bool) -> Markup:
    """One table; `rows_without` has the same rows measured without a LoRA, if that was requested."""
    header = (*COLUMNS, "without a LoRA") if rows_without else COLUMNS
    title = f"{lora_label(result.lora)}: least and best known rows"
    template = Markup('<details{}><summary>{}</summary><div class="tp-rows">{}</div></details>')
    return template.format(" open" if is_open else "", title, markup.table(header, _rows(result, rows_without)))


def _rows(result: PerplexityMeasured, rows_without: Mapping[str, RowScores]) -> Iterator[tuple[str, ...]]:
    for label, rows in (("least known", result.least_known), ("best known", result.best_known)):
        for n, row in enumerate(rows):
            cells = (label if n == 0 else "", row.place, row.read, row.begins, *_figures(row))
            yield (*cells, _perplexity_without_lora(rows_without.get(row.place))) if rows_without else cells


def _figures(row: RowScores) -> tuple[str, ...]:
    return f"{row.perplexity:.4g}", f"{row.right:.0%}", f"{row.tokens:,}"


def _perplexity_without_lora(row: RowScores | None) -> str:
    """Empty if the row is not among the reported ones: very long lists are cut."""
    return f"{row.perplexity:.4g}" if row else ""
