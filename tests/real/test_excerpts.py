"""Excerpts of real books, with a mark where a unit ends: the right places, and no others."""

from __future__ import annotations

from itertools import accumulate
from pathlib import Path

import pytest
from training_pro.chunking import find_sections
from training_pro.data.text import find_bounds

MARK = "¦"
EXCERPTS = sorted(Path(__file__).with_name("excerpts").glob("*.txt"))


@pytest.mark.parametrize("path", EXCERPTS, ids=lambda path: path.stem)
def test_units_end_where_a_reader_would_end_them(path: Path):
    source, _, marked = path.read_text(encoding="utf-8").partition("\n\n")
    assert "Public domain" in source
    parts = marked.split(MARK)
    text = "".join(parts)
    ends = {int(end) for end in find_bounds(text, find_sections(text, "\n\n\n")).ends}
    expected = set(accumulate(map(len, parts)))
    assert [text[:end][-40:] + MARK + text[end:][:40] for end in sorted(ends ^ expected)] == []
