"""The form in a real browser: visibility, links, presets, uploads, and the tabs Perplexity and Runs."""

from __future__ import annotations

import json
from collections.abc import Iterator

import pytest
from training_pro.tests.browser import servers

pytestmark = pytest.mark.browser

ROWS = "ferry-chats.jsonl"
NO_MODEL = "No model is loaded"


@pytest.fixture(scope="module")
def demo(browser, tmp_path_factory) -> Iterator[servers.Server]:
    with servers.demo(tmp_path_factory.mktemp("demo")) as server:
        yield server


@pytest.fixture
def page(demo, open_page):
    page = open_page(demo)
    if NO_MODEL in page.wait_for(lambda: page.words("line"), "the status line"):
        page.press("load")
        page.wait_for_words("model", "is loaded")
    return page


def test_the_summary_stands_there_before_any_change(demo, open_page):
    """On a server whose form was never changed, so nothing is restored."""
    open_page(demo).wait_for_words("together", "Each step trains on")


def test_data_chosen_before_the_model_is_loaded_are_counted_then(demo, open_page):
    """The first test of this file: the others load the model."""
    page = open_page(demo)
    page.fill(data=ROWS)
    page.wait_for_words("data said", "Press Check")
    page.press("load")
    page.wait_for_words("data said", "14 examples")


def test_only_relevant_settings_are_shown_and_shares_can_be_typed(page):
    assert page.shows("hard_cut") and not page.shows("train_on")
    page.fill(data=ROWS)
    page.wait_for(lambda: page.shows("train_on") and not page.shows("hard_cut"), "the settings of rows")
    page.wait_for_words("data said", "14 examples")
    page.share(ROWS, 50)
    page.wait_for_words("data said", "7 examples")
    page.wait_for_words("together", "Each step trains on 4 examples; 4 steps in total")


def test_a_changed_setting_has_a_reset_button(page):
    page.fill(rank=64)
    page.wait_for(lambda: page.way_back("rank").count(), "a mark on the rank")
    page.way_back("rank").click()
    page.wait_for(lambda: page.setting("rank") == "32", "the default")
    page.wait_for(lambda: not page.way_back("rank").count(), "no mark any more")


def test_messages_link_to_their_setting_and_suggestions_are_applied_with_a_click(page):
    page.fill(name="ways", data="story.txt", cutoff=64, batch_size=5000)
    page.press("check")
    page.wait_for_words("answer", "5000 is out of range")
    page.link("answer", "True Batch Size").click()
    page.wait_for(lambda: page.focused() == "batch_size", "the focus on it")
    page.fill(batch_size=8, epochs="0.5")
    page.check()
    page.suggestion("epochs").click()
    page.wait_for(lambda: page.setting("epochs") != "0.5", "the epochs that were suggested")
    page.fill(epochs="0.5", learning_rate="1e-9")
    page.check()
    page.all_suggestions().click()
    page.wait_for(lambda: page.setting("epochs") != "0.5", "all that was suggested")
    page.wait_for(lambda: page.setting("learning_rate") == "0.0002", "the learning rate, too")


def test_browsing_the_examples(page):
    page.fill(data=ROWS)
    page.wait_for_words("data said", "14 examples")
    page.unfold("leafing")
    page.press("show example")
    page.wait_for_words("example", "Example 1 of 14", ROWS)
    page.press("next example")
    page.wait_for_words("example", "Example 2 of 14")
    page.write("holding", "no such words")
    page.press("next example")
    page.wait_for_words("example", "'no such words' was not found from example 3 on.")
    page.write("holding", "")
    page.write("example", "14")
    page.press("next example")
    page.wait_for_words("example", "There is no example 15. The data has 14 examples.")
    page.press("example before")
    page.wait_for_words("example", "Example 13 of 14")
    page.wait_for(lambda: page.written("example") == "13", "its number")


def test_an_existing_name_offers_its_choices(demo, page):
    folder = demo.loras / "there-already"
    folder.mkdir(parents=True)
    (folder / "adapter_model.safetensors").write_bytes(b"x")
    page.fill(name="there-already")
    page.wait_for_words("name said", "there-already already exists")
    page.link("name said", "Replace it (a backup is kept)").click()
    page.wait_for(lambda: page.setting("if_exists").startswith("Replace"), "the choice in the form")


def test_a_message_of_success_goes_when_the_form_changes(page):
    page.unfold("presets")
    page.write("preset", "gone soon")
    page.press("save preset")
    page.wait_for_words("preset said", "Saved as gone soon")
    page.fill(rank=16)
    page.wait_for(lambda: not page.words("preset said").strip(), "no message")
    page.fill(rank=32)


def test_a_text_that_is_cut_off_in_its_box_has_a_tooltip(page):
    page.fill(name=40 * "long ")
    page.wait_for(lambda: page.tooltip("name") == 40 * "long ", "the whole name")
    page.fill(name="short")
    page.wait_for(lambda: page.tooltip("name") == "", "no tooltip")


def test_presets_fill_the_form_and_keep_name_and_data(demo, page):
    page.fill(name="mine", data="story.txt")
    page.choose("start-from", "DEMENTOR, two epochs")
    page.wait_for_words("start from said", "should know by heart")  # a menu may be chosen from twice
    assert page.setting("name") == "mine"
    page.unfold("part-lora")
    page.choose("loras-preset", "4-bit model, S")
    page.wait_for(lambda: page.setting("rank") != "32", "the rank of the preset")
    page.unfold("presets")
    page.write("preset", "of my own")
    page.press("save preset")
    page.wait_for_words("preset said", "Saved as of my own")
    preset = json.loads((demo.user_data / "training" / "presets" / "of my own.json").read_text(encoding="utf-8"))
    assert preset["chunking"] == "dementor" and "name" not in preset
    page.press("defaults")
    page.wait_for(lambda: page.setting("rank") == "32", "the default rank")
    page.press("delete preset")
    page.wait_for_words("preset said", "of my own is deleted")


def test_uploading_a_file(demo, page, tmp_path):
    path = tmp_path / "my text.txt"
    path.write_text("One sentence. Another one.\n" * 40, encoding="utf-8")
    page.add_file(path)
    page.wait_for_words("data said", "my text.txt", "raw text")
    assert (demo.user_data / "training" / "datasets" / "my text.txt").is_file()


def test_new_files_keep_the_selection(demo, page):
    """New files shift the indices in the list, by which Gradio 4 stores the selection."""
    page.fill(data="story.txt")
    page.wait_for_words("data said", "story.txt")
    page.fill(data=ROWS)
    page.wait_for_words("data said", "story.txt", ROWS)
    before = page.chosen("tp-data")
    folder = demo.user_data / "training" / "datasets"
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "aaa first of all.txt").write_text("One sentence. Another one.\n" * 40, encoding="utf-8")
    page.press("refresh")
    page.wait_for(lambda: "aaa first of all.txt" in " ".join(page.offers("tp-data")), "the new file in the menu")
    page.wait_for(lambda: page.chosen("tp-data") == before, "what was chosen")
    page.wait_for_words("data said", "story.txt", ROWS)
    page.fill(cutoff=65)
    page.wait_for_words("data said", "story.txt", ROWS)


def test_one_step_is_probed_and_layers_are_picked(page):
    page.fill(name="tried", data="story.txt", cutoff=64)
    page.unfold("part-memory-and-speed")
    page.press("test one step")
    page.wait_for_words(
        "one step", "time per step", "estimated by Check", "The run fits in memory without changes"
    )
    page.unfold("part-lora")
    page.press("layers")
    page.tick("tp-layers-picked", "q_proj")
    page.wait_for(lambda: page.setting("targets") == "q_proj", "the layer in the form")


def test_runs_and_perplexity(demo, page):
    page.start("short", epochs=2)
    page.wait_until_ended("short")
    page.wait_for_words("name said", "short already exists")
    page.tab("Perplexity")
    page.choose("perplexity-data", "story.txt")
    page.choose("perplexity-loras", "short")
    page.press("work out")
    text = page.wait_for_words("perplexity", "story.txt", "short")
    assert text.count("story.txt") == 2
    assert text.count("highest perplexity") == 2
    page.choose("perplexity-data", "ferry-chats.jsonl")
    page.wait_for_words("how rows are read", "with the settings on the Train tab", "Train on: Auto")
    page.wait_for(lambda: not page.can_write("perplexity-stride"), "a stride that is off")
    page.press("work out")
    page.wait_for_words(
        "perplexity",
        "short: rows with the highest and lowest perplexity",
        "14 rows",
        "measured text",
        "lowest perplexity",
    )
    assert page.too_wide() == []

    page.tab("Runs")
    page.wait_for_words("runs", "short", "finished")
    page.write("filter", "finished short")  # other tests leave runs too
    assert not page.shown("compare"), "actions appear with a chosen run"
    page.run_row("short").click()
    page.wait_for_words("one run", "short", "The final LoRA of the run")
    page.wait_for(lambda: page.run_row("short").get_attribute("aria-selected") == "true", "a marked row")
    assert not page.shown("resume"), "a finished run can't be resumed"
    page.write("note", "the first one")
    page.press("keep note")
    page.wait_for_words("runs", "the first one")
    page.press("gguf")
    page.wait_for_words("runs said", "short.gguf", "To use the LoRA in llama.cpp")
    assert (demo.loras / "short" / "short.gguf").is_file()
    page.press("merge")
    page.wait_for_words("runs said", "enter a name for the model")
    page.write("new name", "short-merged")
    page.press("merge")
    page.wait_for_words("runs said", "short was merged into", "short-merged")
    assert (demo.user_data / "models" / "short-merged" / "model.safetensors").is_file()
    page.wait_for(lambda: "short-merged" in page.offers("tp-model"), "the merged model in the menu")
    page.press("merge")
    page.wait_for_words("runs said", "a model named 'short-merged' already exists")
    page.write("new name", "short-too")
    page.press("make own")
    page.wait_for_words("runs said", "short-too is now a separate LoRA")
    page.wait_for(lambda: len(page.runs()) == 2, "the copy in the list")
    for names in (["short", "short-too"], ["short-too", "short"]):
        page.sort_runs("Name")
        page.wait_for(lambda names=names: page.runs() == names, "sorted by name")
    page.press("compare")
    page.wait_for_words("runs said", "compare with short")
    page.run_row("short-too").focus()
    page.press_key("Enter")
    page.wait_for_words("compared", "short and short-too", "Smoothed loss", "steps")
    page.wait_for(lambda: page.run_row("short").get_attribute("aria-selected") == "true", "short, still chosen")
    page.press("copy settings")
    page.wait_for_words("runs said", "the settings of short")
    page.write("filter", "too")
    page.wait_for(lambda: page.runs() == ["short-too"], "the filtered list")
    page.write("filter", "short")
    page.wait_for(lambda: len(page.runs()) == 2, "both again")
    assert page.too_wide() == []
    page.press("delete run")
    page.wait_for_words("runs said", "in the trash")
    assert not (demo.loras / "short").exists()
    page.wait_for(lambda: "short" not in page.words("one run") + page.words("compared"), "nothing is shown of it")
    page.wait_for(lambda: page.runs() == ["short-too"], "the list without it")
    page.tab("Train")
    page.wait_for(lambda: "LoRA: short" not in page.offers("tp-start-from"), "that menu without it, too")
    page.tab("Runs")
    page.press("undo delete")
    page.wait_for_words("runs said", "is restored")
    assert (demo.loras / "short" / "adapter_model.safetensors").is_file()
    page.run_row("short-too").click()
    page.wait_for_words("one run", "short-too")
    page.press("attach")
    page.wait_for_words("runs said", "short-too", "attached")
    page.tab("Try it")
    page.press("take off")
    page.wait_for_words("attached", "short-too")
