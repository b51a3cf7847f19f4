"""Read docs/coming-from.md: what the page says of a name."""

from __future__ import annotations

from training_pro.tests.test_architecture import ROOT

PAGE = (ROOT / "docs" / "coming-from.md").read_text(encoding="utf-8")


def read_page(name: str) -> str:
    """Return the rest of the only row whose first cell is this name, as code or in words."""
    (row,) = [line for line in PAGE.splitlines() if line.startswith((f"| {name} |", f"| `{name}` |"))]
    return row.split("|", 2)[2].strip(" |")


def read_section(title: str) -> str:
    """Return the table under this title."""
    return PAGE.split(f"## {title}\n", 1)[1].split("\n## ", 1)[0]
