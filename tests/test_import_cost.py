"""The webui starts no slower for us: little is imported, nothing heavy, and the tab is built in a moment."""

from __future__ import annotations

from statistics import median

import pytest
from training_pro.bench.importing import Start, measure_starts

ALLOWED = {"script": 0.1, "ours": 0.3}
GRADIO = 2.0  # seconds that its import takes where those are meant; a slower machine has so much more for ours
STARTS = 3
ATTEMPTS = 4  # other work on the machine makes it slower, nothing makes it quicker


@pytest.fixture(scope="module")
def attempts() -> list[list[Start]]:
    """Three starts; where they were too slow three more, and so on, for the least disturbed to count."""
    found = [measure_starts(STARTS)]
    while len(found) < ATTEMPTS and not all(quick(found, part) for part in ALLOWED):
        found.append(measure_starts(STARTS))
    return found


def quick(attempts: list[list[Start]], part: str) -> bool:
    return any(middle(starts, part) < allowed(starts, part) for starts in attempts)


def allowed(starts: list[Start], part: str) -> float:
    return ALLOWED[part] * max(1.0, middle(starts, "gradio") / GRADIO)


def middle(starts: list[Start], part: str) -> float:
    return median(getattr(start, part) for start in starts)


def test_the_tab_is_drawn_without_torch_transformers_or_peft(attempts):
    assert {(start.drawn, *start.heavy) for starts in attempts for start in starts} == {(True,)}


def test_script_py_is_imported_in_a_tenth_of_a_second(attempts):
    assert quick(attempts, "script"), attempts


def test_import_and_tab_take_three_tenths_of_a_second_more_than_gradio(attempts):
    assert quick(attempts, "ours"), attempts
