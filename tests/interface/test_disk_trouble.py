"""What the disk does not let the page do is said where it was asked for; nothing escapes a handler."""

from __future__ import annotations

import gradio as gr
import pytest
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base.page_context import Joined
from training_pro.interface.tabs.runs_tab import RunsTab
from training_pro.interface.train.train_tab import TrainTab
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, made


@pytest.fixture
def joined(tmp_path):
    return Joined(FakeHost(folders=made_folders(tmp_path)), PeftEngine(), Session())


@pytest.fixture
def train(joined):
    with gr.Blocks(), gr.Tab() as drawn:
        tab = TrainTab(joined)
        tab.draw(drawn)
    return tab


def test_a_note_that_cannot_be_written(joined):
    story = made(joined.host.folders.loras, "story", FINISHED)
    (story / "notes.txt").unlink()
    (story / "notes.txt").mkdir()
    with gr.Blocks(), gr.Tab() as drawn:
        tab = RunsTab(joined)
        tab.draw(drawn)
    keep = tab._doing(tab._on_keep)
    said, table, *_ = keep({tab._chosen: "story", tab._note: "the good one"})
    assert "notes.txt" in said and "tp-bad" in said
    assert "story" in table
    (story / "notes.txt").rmdir()
    assert "The note of story is kept." in keep({tab._chosen: "story", tab._note: "the good one"})[0]


def test_a_run_that_was_cut_off_and_cannot_be_kept(joined, train):
    made(joined.host.folders.loras, "night", CUT_OFF)

    def broken(run, folders):
        raise OSError(28, "No space left on device")

    said, *_ = train._unfinished._do(broken, {train._unfinished._run: "night"})
    assert "A file cannot be read or written: No space left on device." in said


def test_a_preset_that_cannot_be_saved(joined, train):
    presets = joined.host.folders.presets
    presets.parent.mkdir(parents=True, exist_ok=True)
    presets.write_text("a file, where the folder should be")
    given = {
        **dict.fromkeys(train._form.inputs()),
        train._start_from._name: "mine",
        train._start_from._order: "newest",
    }
    said, menu = train._start_from._keep(given)
    assert str(presets) in said and "tp-bad" in said
    assert menu["choices"]


def test_files_that_cannot_be_taken_in(joined, train, tmp_path):
    (tmp_path / "story.txt").write_text("It was night.")
    folder = joined.host.folders.datasets
    folder.rmdir()
    folder.write_text("a file, where the folder should be")
    data = train._form.components["data"]
    chosen, said = train._take_in({train._add: [str(tmp_path / "story.txt")], data: ["geese.pdf"]})
    assert str(folder) in said and "tp-bad" in said
    assert chosen["value"] == ["geese.pdf"]


def test_a_name_longer_than_the_system_can_have_stands_nowhere(joined, train):
    joined.host.folders.loras.mkdir()
    name, exists, method = (train._form.components[key] for key in ("name", "if_exists", "method"))
    assert train._standing({name: "x" * 300, exists: "ask", method: "lora"}) == ""
