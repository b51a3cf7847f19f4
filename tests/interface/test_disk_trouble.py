"""Disk errors are shown where the action was started; no exception escapes a handler."""

from __future__ import annotations

from html import unescape

import gradio as gr
import pytest
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import Form, PageContext
from training_pro.interface.tabs import RunsTab
from training_pro.interface.train import TrainTab
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, write_files


@pytest.fixture
def context(tmp_path):
    return PageContext(FakeHost(folders=make_folders(tmp_path)), PeftEngine(), Session())


@pytest.fixture
def train(context):
    with gr.Blocks(), gr.Tab() as parent:
        tab = TrainTab(context)
        tab.draw(parent)
    return tab


def test_a_note_that_cannot_be_written(context):
    story = write_files(context.host.folders.loras, "story", FINISHED)
    (story / "notes.txt").unlink()
    (story / "notes.txt").mkdir()
    with gr.Blocks(), gr.Tab() as parent:
        tab = RunsTab(context, Form())
        tab.draw(parent)
    keep = tab._handler(tab._on_note)
    message, table, *_ = keep({tab._chosen: "story", tab._note: "the good one"})
    assert "notes.txt" in message and "tp-bad" in message
    assert "story" in table
    (story / "notes.txt").rmdir()
    assert "The note for story is saved." in keep({tab._chosen: "story", tab._note: "the good one"})[0]


def test_a_run_that_was_cut_off_and_cannot_be_kept(context, train):
    write_files(context.host.folders.loras, "night", CUT_OFF)

    def broken(run, folders):
        raise OSError(28, "No space left on device")

    panel = train._resume_panel
    message = panel._on_click(broken, {panel._menu: "night"})[panel.message]
    assert "A file can't be read or written: No space left on device." in unescape(message)


def test_a_preset_that_cannot_be_saved(context, train):
    presets = context.host.folders.presets
    presets.parent.mkdir(parents=True, exist_ok=True)
    presets.write_text("a file, where the folder should be")
    inputs = {
        **{component: component.value for component in train._form.inputs()},
        train._presets._name: "mine",
        train._presets._order: "newest",
    }
    message, menu = train._presets._on_save(inputs)
    assert str(presets) in message and "tp-bad" in message
    assert menu["choices"]


def test_files_that_cannot_be_added(context, train, tmp_path):
    (tmp_path / "story.txt").write_text("It was night.")
    folder = context.host.folders.datasets
    folder.rmdir()
    folder.write_text("a file, where the folder should be")
    data = train._form.components["data"]
    chosen, message = train._on_upload({train._add_button: [str(tmp_path / "story.txt")], data: ["geese.pdf"]})
    assert str(folder) in message and "tp-bad" in message
    assert chosen["value"] == ["geese.pdf"]


def test_a_name_that_is_too_long_for_the_file_system_does_not_exist(context, train):
    context.host.folders.loras.mkdir()
    name, exists, method = (train._form.components[key] for key in ("name", "if_exists", "method"))
    assert train._describe_name({name: "x" * 300, exists: "ask", method: "lora"}) == ""
