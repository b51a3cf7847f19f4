"""Start from: what is chosen is what goes into the form, whatever the user's own presets are called."""

from __future__ import annotations

import os

import gradio as gr
import pytest
from training_pro.core.jobs.session import Session
from training_pro.interface.base.form import Form
from training_pro.interface.base.page_context import Joined
from training_pro.interface.train.presets_panel import StartFrom
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import FINISHED, made


@pytest.fixture
def start_from(tmp_path):
    """The menus of a user whose own presets are called like ours."""
    host = FakeHost(folders=made_folders(tmp_path))
    host.folders.presets.mkdir(parents=True)
    for name in ("style", "lora-4bit-m", "mine"):
        (host.folders.presets / f"{name}.json").write_text('{"rank": 7}')
    made(
        host.folders.loras,
        "style",
        {**FINISHED, "training_parameters.json": {"name": "style", "data": [], "rank": 9}},
    )
    form = Form()
    with gr.Blocks():
        for key in SETTINGS:
            form.draw(key)
        made_menus = StartFrom(Joined(host, None, Session()), form)
        made_menus.draw()
        made_menus.draw_table("loras")
        made_menus.draw_keeping()
    return made_menus


def filled(start_from, menu, label):
    """What a choice puts into the form, by the keys."""
    value = next(value for words, value in menu.choices if words == label)
    given = {**dict.fromkeys(start_from._form.inputs()), menu: value}
    updates = start_from._on_choose(menu, start_from.menu_message, given)
    return {key: updates[part]["value"] for key, part in start_from._form.components.items() if part in updates}


def test_goals_rows_presets_and_loras_of_one_name_are_apart(start_from):
    (table,) = start_from._tables
    goal = next(goal for goal in presets.goals() if goal.name == "style")
    found = filled(start_from, start_from.menu, goal.label)
    assert found.keys() == goal.values.keys() and found.get("rank") != 7
    row = next(row for row in presets.table("loras", presets.GOALS.parent) if row.name == "lora-4bit-m")
    assert filled(start_from, table, row.label)["rank"] == row.values["rank"]
    assert filled(start_from, start_from.menu, "preset: style")["rank"] == 7
    assert filled(start_from, start_from.menu, "LoRA: style")["rank"] == 9


def test_a_preset_of_ones_own_begins_at_the_defaults(start_from):
    found = filled(start_from, start_from.menu, "preset: mine")
    assert found["rank"] == 7 and found["batch_size"] == SETTINGS["batch_size"].default


def test_a_name_of_ours_is_refused_in_a_sentence(start_from):
    form = dict.fromkeys(start_from._form.inputs())
    given = {**form, start_from._name: "style", start_from._order: "newest"}
    said, _ = start_from._on_save(given)
    assert "is a name that comes with Training PRO" in said
    assert (start_from._context.host.folders.presets / "style.json").read_text() == '{"rank": 7}'


def test_new_lists_of_loras_stay_in_the_order_that_is_chosen(start_from):
    loras = start_from._context.host.folders.loras
    made(loras, "annals", FINISHED)
    os.utime(loras / "annals", (1, 1))

    def offered(update):
        return [label for label, _ in update["choices"] if label.startswith("LoRA: ")]

    form = dict.fromkeys(start_from._form.inputs())
    given = {**form, start_from._name: "kept", start_from._order: "name"}
    assert offered(start_from._on_save(given)[1]) == ["LoRA: annals", "LoRA: style"]
    assert offered(start_from._on_delete(given)[1]) == ["LoRA: annals", "LoRA: style"]
    assert offered(start_from.refreshed("newest")) == ["LoRA: style", "LoRA: annals"]
