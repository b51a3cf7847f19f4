"""The form in a real browser: what is shown, links, suggestions, presets, uploads, and the actions of Runs."""

from __future__ import annotations

import json

import pytest

pytestmark = [pytest.mark.browser, pytest.mark.long]

ROWS = "ferry-chats.jsonl"
CHANGED = "Settings have changed since this check. Press Check for a new report."


def test_the_form_follows_the_data(demo, open_page, tmp_path):
    page = open_page(demo)
    page.wait_for_words("together", "Each step trains on")
    assert page.shown("hard_cut") and not page.shown("train_on")
    page.fill(data=ROWS)
    page.wait_for_words("data-said", "Press Check")
    page.press("load")
    page.wait_for_words("data-said", "14 examples")  # chosen before the model was loaded, and counted then
    page.wait_for(lambda: page.shown("train_on") and not page.shown("hard_cut"), "the settings of rows")
    page.share(ROWS, 50)
    page.wait_for_words("data-said", "7 examples")
    page.wait_for_words("together", "Each step trains on 4 examples; 4 steps in total")
    page.share(ROWS, 100)
    page.wait_for_words("data-said", "14 examples")
    page.unfold("leafing")
    page.press("leafing-show")
    page.wait_for_words("leafing-said", "Example 1 of 14", ROWS)
    page.write("leafing-number", "14")
    page.press("leafing-next")
    page.wait_for_words("leafing-said", "There is no example 15. The data has 14 examples.")

    path = tmp_path / "aaa first of all.txt"  # shifts the indices of a menu, by which Gradio 4 keeps a choice
    path.write_text("One sentence. Another one.\n" * 40, encoding="utf-8")
    page.add_file(path)
    page.wait_for_words("data-said", path.name, "raw text")  # the example has given way
    assert (demo.user_data / "training" / "datasets" / path.name).is_file()
    payload = "<img src=x onerror=alert()>.txt"  # a file name may hold all but a slash
    path.rename(demo.user_data / "training" / "datasets" / payload)
    page.press("refresh")
    page.fill(cutoff=65, data=payload)
    page.wait_for_words("data-said", path.name, payload)


def test_check_leads_to_settings_and_notices_changes(demo, open_page):
    page = open_page(demo)
    page.fill(name=40 * "long ", rank=64)
    page.wait_for(lambda: page.tooltip("name") == 40 * "long ", "the whole name in a tooltip")
    page.wait_for(lambda: page.way_back("rank").count(), "a mark on the rank")
    page.way_back("rank").click()
    page.wait_for(lambda: page.written("rank") == "32", "the default")
    page.fill(name="ways", data="story.txt", cutoff=64, batch_size=5000, learning_rate="abc")
    page.press("check")
    page.wait_for_words("answer", "5000 is out of range", "'abc'")
    page.link("answer", "True Batch Size").click()
    page.wait_for(lambda: page.focused() == "batch_size", "the focus on it")
    page.fill(batch_size=8, epochs="0.5", learning_rate="1e-9")
    assert "5000" not in page.check()
    page.all_suggestions().click()
    page.wait_for(lambda: page.written("epochs") != "0.5", "all that was suggested")
    page.wait_for(lambda: page.written("learning_rate") == "0.0002", "the learning rate, too")
    page.wait_for_words("answer", CHANGED)
    page.check()
    page.wait_for(lambda: CHANGED not in page.words("answer"), "a report that is up to date")


def test_presets_and_existing_names(demo, open_page):
    page = open_page(demo)
    (demo.loras / "there-already").mkdir(parents=True)
    (demo.loras / "there-already" / "adapter_model.safetensors").write_bytes(b"x")
    page.fill(name="there-already", data="story.txt")
    page.wait_for_words("name-said", "there-already already exists")
    page.link("name-said", "Replace it (a backup is kept)").click()
    page.wait_for(lambda: page.written("if_exists").startswith("Replace"), "the choice in the form")
    page.choose("start-from", "DEMENTOR, two epochs")
    page.wait_for_words("start-from-said", "should know by heart")
    assert page.written("name") == "there-already"
    page.unfold("presets")
    page.write("preset-name", "of my own")
    page.press("preset-save")
    page.wait_for_words("preset-said", "Saved as of my own")
    preset = json.loads((demo.user_data / "training" / "presets" / "of my own.json").read_text(encoding="utf-8"))
    assert preset["chunking"] == "dementor" and "name" not in preset
    page.press("defaults")
    page.wait_for(lambda: page.written("chunking") != "DEMENTOR", "the defaults")
    page.unfold("part-lora")
    page.press("layers")
    page.tick("tp-layers-picked", "q_proj")
    page.wait_for(lambda: page.written("targets") == "q_proj", "the layer in the form")


def test_every_action_of_runs(demo, open_page):
    page = open_page(demo)
    page.start("short", epochs=2)
    page.wait_until_ended("short")
    page.tab("Runs")
    page.wait_for_words("runs-table", "short", "finished")
    assert not page.shown("runs-compare"), "actions appear with a chosen run"
    page.run_row("short").click()
    page.wait_for_words("runs-one", "short", "The final LoRA of the run")
    assert not page.shown("runs-resume"), "a finished run can't be resumed"
    page.press("runs-gguf")
    page.wait_for_words("runs-said", "short.gguf", "To use the LoRA in llama.cpp")
    assert (demo.loras / "short" / "short.gguf").is_file()
    page.write("runs-name", "short-merged")
    page.press("runs-merge")
    page.wait_for_words("runs-said", "short was merged into", "short-merged")
    page.wait_for(lambda: "short-merged" in page.offers("tp-model"), "the merged model in the menu")
    page.write("runs-name", "short-too")
    page.press("runs-own")
    page.wait_for_words("runs-said", "short-too is now a separate LoRA")
    for names in (["short", "short-too"], ["short-too", "short"]):
        page.sort_runs("Name")
        page.wait_for(lambda names=names: [n for n in page.runs() if "short" in n] == names, "sorted by name")
    page.press("runs-compare")
    page.wait_for_words("runs-said", "compare with short")
    page.run_row("short-too").focus()
    page.press_key("Enter")
    page.wait_for_words("runs-compared", "short and short-too", "Smoothed loss", "steps")
    page.press("runs-settings")
    page.wait_for_words("runs-said", "the settings of short")
    page.write("runs-filter", "too")
    page.wait_for(lambda: page.runs() == ["short-too"], "the filtered list")
    page.write("runs-filter", "short")
    page.wait_for(lambda: len(page.runs()) == 2, "both again")
    assert page.too_wide() == []
    page.press("runs-delete")
    page.wait_for_words("runs-said", "in the trash")
    page.wait_for(
        lambda: "short" not in page.words("runs-one") + page.words("runs-compared"), "nothing is shown of it"
    )
    page.press("runs-undo")
    page.wait_for_words("runs-said", "is restored")
    assert (demo.loras / "short" / "adapter_model.safetensors").is_file()
