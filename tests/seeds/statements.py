"""Rows of docs/coming-from.md that tell what is true here about a statement of a seed."""

from __future__ import annotations

from training_pro.settings.other_names import render_markdown


def what_is_true_here(statement: str) -> str:
    """Return the second cell of the row of a statement, which must be on the page once."""
    (row,) = [line for line in render_markdown().splitlines() if line.startswith(f"| {statement} |")]
    return row.split(" | ")[1].removesuffix(" |")
