"""After each click, the answer is inside the window, and nothing that it made untrue is still shown."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

WIDTHS = (1000, 500)


@pytest.fixture(scope="module")
def demo(browser, tmp_path_factory) -> Iterator[servers.Server]:
    with servers.demo(tmp_path_factory.mktemp("demo")) as server:
        yield server


def answer(page, button: str, part: str, *words: str) -> str:
    """Press a button; its answer says these words, in sight."""
    page.press(button)
    text = page.wait_for_words(part, *words)
    page.wait_for(lambda: page.part_in_sight(part), f"{part!r} in sight after {button!r}", 10)
    return text


@pytest.mark.parametrize("width", WIDTHS)
def test_every_answer_is_in_sight_and_replaces_the_one_before(demo, open_page, width):
    page = open_page(demo, width=width)
    name = f"seen-{width}"
    page.fill(name=name, data="story.txt", cutoff=64, epochs=2)
    answer(page, "check", "answer", "Check: ready")
    page.fill(rank=0)
    assert "Check: ready" not in answer(page, "put", "answer", "LoRA Rank")
    answer(page, "start", "answer", "LoRA Rank")
    page.fill(rank=8)
    page.unfold("part-memory-and-speed")
    answer(page, "test one step", "one step", "step")
    page.unfold("presets")
    answer(page, "save preset", "preset said", "name")
    page.write("preset", name)
    assert "Saved" in answer(page, "save preset", "preset said", name)
    assert "rank" not in answer(page, "start", "run", f"Training '{name}'").lower()
    page.wait_until_ended(name)
    assert page.part_in_sight("run")

    page.tab("Try it")
    page.write("prompt", "")
    answer(page, "go on", "try it", "Enter a prompt")
    page.write("prompt", "Old Maren")
    page.press_key("n")
    page.wait_for(lambda: "Enter a prompt" not in page.text("try it"), "the old message removed")
    answer(page, "put on", "attached", "attached")
    answer(page, "take off", "attached", "detached")

    page.tab("Perplexity")
    answer(page, "work out", "perplexity said", "No dataset")
    page.choose("perplexity-data", "story.txt")
    assert "No dataset" not in answer(page, "work out", "perplexity", "story.txt")

    page.tab("Runs")
    page.run_row(name).click()
    page.wait_for_words("one run", name)
    page.wait_for(lambda: page.part_in_sight("one run"), "the run in sight", 10)
    for button in ("make own", "merge"):
        answer(page, button, "runs said", "name")
    page.write("note", "the good one")
    assert "name" not in answer(page, "keep note", "runs said", f"The note for {name} is saved.")
    answer(page, "compare", "runs said", "second")
    answer(page, "delete run", "runs said", "trash")
    assert "trash" not in answer(page, "undo delete", "runs said", "restored")
