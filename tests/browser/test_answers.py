"""After each click, the answer is inside the window, and nothing that it made untrue is still shown."""

from __future__ import annotations

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]

WIDTHS = (500, 1000)


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
    assert "Check: ready" not in answer(page, "queue-put", "answer", "LoRA Rank")
    answer(page, "start", "answer", "LoRA Rank")
    page.fill(rank=8)
    page.unfold("part-memory-and-speed")
    answer(page, "probe", "probe-said", "step")
    page.unfold("presets")
    answer(page, "preset-save", "preset-said", "name")
    page.write("preset-name", name)
    assert "Saved" in answer(page, "preset-save", "preset-said", name)
    assert "rank" not in answer(page, "start", "run", f"Training '{name}'").lower()
    page.wait_until_ended(name)
    assert page.part_in_sight("run")

    page.tab("Try it")
    page.wait_for(lambda: page.written("prompt"), "the suggested prompt")
    page.write("prompt", "")
    answer(page, "go", "try-said", "Enter a prompt")
    page.write("prompt", "Old Maren")
    page.press_key("n")
    page.wait_for(lambda: "Enter a prompt" not in page.text("try-said"), "the old message removed")
    answer(page, "put-on", "put-said", "attached")
    answer(page, "take-off", "put-said", "detached")

    page.tab("Perplexity")
    answer(page, "perplexity-go", "perplexity-said", "No dataset")
    page.choose("perplexity-data", "story.txt")
    assert "No dataset" not in answer(page, "perplexity-go", "perplexity-found", "story.txt")

    page.tab("Runs")
    page.run_row(name).click()
    page.wait_for_words("runs-one", name)
    page.wait_for(lambda: page.part_in_sight("runs-one"), "the run in sight", 10)
    answer(page, "runs-own", "runs-said", "Name: this field is empty")
    page.end_window_at("runs-merge")
    answer(page, "runs-merge", "runs-said", "enter a name for the model")
    page.write("runs-note", "the good one")
    assert "name" not in answer(page, "runs-keep", "runs-said", f"The note for {name} is saved.")
    answer(page, "runs-compare", "runs-said", f"compare with {name}")
    answer(page, "runs-delete", "runs-said", "trash")
    assert "trash" not in answer(page, "runs-undo", "runs-said", "is restored")
