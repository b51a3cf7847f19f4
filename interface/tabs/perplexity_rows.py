"""Which rows are known least and best: a table for the model without a LoRA and for each with one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from html import escape

from ...core.jobs import KnownRow, PerplexityFound
from ..base import markup
from .perplexity_strip import name

HEAD = ("", "row", "what is read", "what counts", "perplexity", "tokens right", "tokens")
EXPLAINED = (
    "A row that is known far less than the others may be a bad one: look at it in its file. One of few tokens "
    "stands at either end only where it is far from the rest."
)


def known_rows(found: Sequence[PerplexityFound]) -> str:
    """The first table open, the others folded; nothing where there is one row, or a text."""
    told = [one for one in found if one.least_known]
    if not told:
        return ""
    bare = {row.place: row for one in told if one.lora == "-" for row in one.rows}
    tables = "".join(_table(one, bare if one.lora != "-" else {}, is_open=one is told[0]) for one in told)
    return markup.paragraph(EXPLAINED, quiet=True) + tables


def _table(one: PerplexityFound, bare: Mapping[str, KnownRow], *, is_open: bool) -> str:
    """With what the model says of the same rows without a LoRA, where that was asked."""
    head = (*HEAD, "without a LoRA") if bare else HEAD
    title = f"{name(one.lora)}: least and best known rows"
    table = f'<div class="tp-rows">{markup.table(head, _rows(one, bare))}</div>'
    return f"<details{' open' if is_open else ''}><summary>{escape(title)}</summary>{table}</details>"


def _rows(one: PerplexityFound, bare: Mapping[str, KnownRow]) -> Iterator[tuple[str, ...]]:
    for words, rows in (("least known", one.least_known), ("best known", one.best_known)):
        for number, row in enumerate(rows):
            cells = (words if number == 0 else "", row.place, row.read, row.begins, *_figures(row))
            yield (*cells, _without(bare.get(row.place))) if bare else cells


def _figures(row: KnownRow) -> tuple[str, ...]:
    return f"{row.perplexity:.4g}", f"{row.right:.0%}", f"{row.tokens:,}"


def _without(row: KnownRow | None) -> str:
    """Of very many rows not all are told."""
    return f"{row.perplexity:.4g}" if row else ""
