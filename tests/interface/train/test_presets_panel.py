"""Start from: the chosen preset fills the form, also if a user preset has the name of a built-in one."""

from __future__ import annotations

import os

import gradio as gr
import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Session
from training_pro.interface.base import Form, PageContext
from training_pro.interface.train.presets_panel import PresetsPanel
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import FINISHED, write_files


@pytest.fixture
def panel(tmp_path):
    """The menus, with user presets named like built-in ones."""
    host = FakeHost(folders=make_folders(tmp_path))
    host.folders.presets.mkdir(parents=True)
    for name in ("style", "lora-4bit-m", "mine"):
        (host.folders.presets / f"{name}.json").write_text('{"rank": 7}')
    write_files(
        host.folders.loras,
        "style",
        {**FINISHED, "training_parameters.json": {"name": "style", "data": [], "rank": 9}},
    )
    form = Form()
    with gr.Blocks():
        for key in SETTINGS:
            form.draw(key)
        panel = PresetsPanel(PageContext(host, None, Session()), form)
        panel.draw()
        panel.draw_table("loras")
        panel.draw_saving()
    return panel


def values_of_choice(panel, menu, label):
    """The values that a choice puts into the form, by key."""
    value = next(value for choice_label, value in menu.choices if choice_label == label)
    inputs = {**dict.fromkeys(panel._form.inputs()), menu: value}
    updates = panel._on_choose(menu, panel.menu_message, inputs)
    return {key: updates[part]["value"] for key, part in panel._form.components.items() if part in updates}


def test_goals_table_presets_user_presets_and_loras_of_one_name_are_distinct(panel):
    (table,) = panel._tables
    goal = next(goal for goal in presets.goals() if goal.name == "style")
    values = values_of_choice(panel, panel.menu, goal.label)
    assert values.keys() == goal.values.keys() and values.get("rank") != 7
    row = next(row for row in presets.load_table("loras", presets.GOALS_FILE.parent) if row.name == "lora-4bit-m")
    assert values_of_choice(panel, table, row.label)["rank"] == row.values["rank"]
    assert values_of_choice(panel, panel.menu, "preset: style")["rank"] == 7
    assert values_of_choice(panel, panel.menu, "LoRA: style")["rank"] == 9


def test_a_user_preset_starts_from_the_defaults(panel):
    values = values_of_choice(panel, panel.menu, "preset: mine")
    assert values["rank"] == 7 and values["batch_size"] == SETTINGS["batch_size"].default


def test_the_name_of_a_built_in_preset_is_refused(panel):
    form = dict.fromkeys(panel._form.inputs())
    inputs = {**form, panel._name: "style", panel._order: "newest"}
    message, _ = panel._on_save(inputs)
    assert "is the name of a built-in preset" in message
    assert (panel._context.host.folders.presets / "style.json").read_text() == '{"rank": 7}'


def test_the_list_of_loras_keeps_the_chosen_order(panel):
    loras = panel._context.host.folders.loras
    write_files(loras, "annals", FINISHED)
    os.utime(loras / "annals", (1, 1))

    def offered(update):
        return [label for label, _ in update["choices"] if label.startswith("LoRA: ")]

    form = dict.fromkeys(panel._form.inputs())
    inputs = {**form, panel._name: "kept", panel._order: "name"}
    assert offered(panel._on_save(inputs)[1]) == ["LoRA: annals", "LoRA: style"]
    assert offered(panel._on_delete(inputs)[1]) == ["LoRA: annals", "LoRA: style"]
    assert offered(panel.refresh_menu("newest")) == ["LoRA: style", "LoRA: annals"]


def test_the_form_is_exported_for_another_machine_once(panel):
    folders = panel._context.host.folders
    folders.datasets.mkdir(parents=True, exist_ok=True)
    (folders.datasets / "mine.txt").write_text("The ferry leaves at noon.", "utf-8")
    values = {**{key: setting.default for key, setting in SETTINGS.items()}, "name": "a", "data": ["mine.txt"]}
    inputs = {panel._form.components[key]: update["value"] for key, update in form_updates(panel, values).items()}
    message = panel._on_export({**dict.fromkeys(panel._form.inputs()), **inputs})
    assert str(folders.exports / "a") in message
    assert (folders.exports / "a" / "training" / "datasets" / "mine.txt").is_file()
    with pytest.raises(SavingError, match="already exists"):
        panel._on_export({**dict.fromkeys(panel._form.inputs()), **inputs})


def form_updates(panel, values):
    """The updates of the form for values, by key."""
    updates = panel._form.updates(values)
    return {key: updates[part] for key, part in panel._form.components.items() if part in updates}


def test_what_the_form_can_not_show_of_a_lora_is_left_out_and_named(panel):
    odd = {"chunking": "windows", "epochs": None, "rslora": "no", "rank": 5}
    write_files(panel._context.host.folders.loras, "odd", {**FINISHED, "training_parameters.json": odd})
    inputs = {**dict.fromkeys(panel._form.inputs()), panel.menu: "trained:odd"}
    updates = panel._on_choose(panel.menu, panel.menu_message, inputs)
    shown = {key: updates[part]["value"] for key, part in panel._form.components.items() if part in updates}
    assert not {"chunking", "epochs"} & shown.keys()
    assert (shown["rslora"], shown["rank"]) == (False, 5)
    label = SETTINGS["chunking"].label
    assert f"these values are not valid: {label} &#39;windows&#39;; Epochs None." in updates[panel.menu_message]
