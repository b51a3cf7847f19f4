"""Copying settings from presets and LoRAs, and saving and exporting them."""

from __future__ import annotations

import os

import pytest
from training_pro.core.jobs import Session
from training_pro.interface.base import PageContext
from training_pro.interface.train import TrainTab
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab
from training_pro.tests.records.on_disk import FINISHED, write_files


@pytest.fixture
def context(tmp_path):
    """With presets and a LoRA that are named like built-in presets."""
    folders = make_folders(tmp_path)
    for name in ("style", "lora-4bit-m", "mine"):
        write_files(folders.presets, ".", {f"{name}.json": {"rank": 7}})
    parameters = {"name": "style", "data": [], "rank": 9}
    write_files(folders.loras, "style", {**FINISHED, "training_parameters.json": parameters})
    return PageContext(FakeHost(folders=folders), None, Session())


@pytest.fixture
def page(context):
    return open_tab(TrainTab, context)


def chosen(page, menu, label):
    """The values that a choice puts into the form."""
    value = next(value for offered, value in page.named[menu].choices if offered == label)
    updates = page.press(menu, "change", **{menu: value})
    return {key: updates[key]["value"] for key in SETTINGS if "value" in updates.get(key, {})}


def test_presets_and_loras_of_one_name_are_distinct_and_a_preset_starts_from_the_defaults(page):
    goal = next(goal for goal in presets.goals() if goal.name == "style")
    values = chosen(page, "start-from", goal.label)
    assert values.keys() == goal.values.keys() and values.get("rank") != 7
    row = next(row for row in presets.load_table("loras", presets.GOALS_FILE.parent) if row.name == "lora-4bit-m")
    assert chosen(page, "loras-preset", row.label)["rank"] == row.values["rank"]
    assert chosen(page, "start-from", "LoRA: style")["rank"] == 9
    # Each goal says what is learned, so that none leaves another's behind.
    assert {"objective"} <= set.intersection(*({*goal.values} for goal in presets.goals()))
    values = chosen(page, "start-from", "preset: style")
    assert values["rank"] == 7 and values["batch_size"] == SETTINGS["batch_size"].default


def test_the_name_of_a_built_in_preset_is_refused_and_a_full_disk_told(page, context):
    folder = context.host.folders.presets
    assert "is the name of a built-in preset" in page.press("preset-save", preset_name="style")["preset-said"]
    assert '"rank": 7' in (folder / "style.json").read_text()
    folder.rename(folder.parent / "moved")
    folder.write_text("a file, where the folder should be")
    saved = page.press("preset-save", preset_name="kept")
    assert str(folder) in saved["preset-said"] and "tp-bad" in saved["preset-said"]
    assert saved["start-from"]["choices"]


def test_the_list_of_loras_keeps_the_chosen_order(page, context):
    loras = context.host.folders.loras
    write_files(loras, "annals", FINISHED)
    os.utime(loras / "annals", (1, 1))
    for button, order, expected in (
        ("preset-save", "name", ["LoRA: annals", "LoRA: style"]),
        ("preset-delete", "newest", ["LoRA: style", "LoRA: annals"]),
    ):
        menu = page.press(button, preset_name="kept", lora_order=order)["start-from"]
        assert [label for label, _ in menu["choices"] if label.startswith("LoRA: ")] == expected


def test_the_form_is_exported_for_another_machine_once(page, context):
    folders = context.host.folders
    write_files(folders.datasets, ".", {"mine.txt": "The ferry leaves at noon."})
    said = page.press("export", **{"name": "a", "data": ["mine.txt"]})["preset-said"]
    assert str(folders.exports / "a") in said
    assert (folders.exports / "a" / "training" / "datasets" / "mine.txt").is_file()
    assert "already exists" in page.press("export")["preset-said"]


def test_what_the_form_can_not_show_of_a_lora_is_left_out_and_named(context):
    odd = {"chunking": "windows", "epochs": None, "rslora": "no", "rank": 5}
    write_files(context.host.folders.loras, "odd", {**FINISHED, "training_parameters.json": odd})
    page = open_tab(TrainTab, context)
    values = chosen(page, "start-from", "LoRA: odd")
    assert not {"chunking", "epochs"} & values.keys() and (values["rslora"], values["rank"]) == (False, 5)
    said = page.held[page.named["start-from-said"]]
    assert "these values are not valid" in said and "&#39;windows&#39;; Epochs None." in said
