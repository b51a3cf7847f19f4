"""Texts of one part repeated: ten times the text takes about ten times as long, not a hundred times."""

from __future__ import annotations

import time

import pytest
from training_pro.chunking import find_sections
from training_pro.data.text import find_boilerplate, find_bounds

SENTENCES = ["e.g. foo ", "1. ", ". ", "a" * 100, '."', "A. ", "…", "7 of 3 and so on 4 5 6\n"]
LINES = ["a: b\n", "<a> b. c\n", "x" * 90 + "\n", " \n", "12:30 ", "<\n"]
BOOKS = ["[Illustration", "*** START OF THIS PROJECT GUTENBERG ", "Imprint\n", "1 a 2\n", "Contents\nabc\n"]
FINDERS = {
    **{part: lambda text: find_bounds(text, find_sections(text, ""), "sentences") for part in SENTENCES},
    **{part: lambda text: find_bounds(text, find_sections(text, "")) for part in LINES},
    **dict.fromkeys(BOOKS, find_boilerplate),
}


@pytest.mark.long
@pytest.mark.parametrize("part", FINDERS)
def test_time_grows_linearly(part: str):
    def cpu_time(chars: int) -> float:
        text, started = part * (chars // len(part)), time.process_time()
        FINDERS[part](text)
        return time.process_time() - started

    cpu_time(1000)
    assert cpu_time(400_000) < 40 * (cpu_time(40_000) + 0.01)
