"""The Train tab: what stands under the name that is typed, and what may be done about it."""

from __future__ import annotations

import asyncio
import re

import gradio as gr
import pytest
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base.page_context import Joined
from training_pro.interface.train.train_tab import TrainTab
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import CUT_OFF, lora, made

MODEL = {"model.safetensors": "weights"}


def left(ended):
    """What a run with this end leaves."""
    return {**lora(), "training_log.json": {"ended": ended}}


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    host = FakeHost(folders=made_folders(tmp_path_factory.mktemp("page")))
    with gr.Blocks(), gr.Tab() as drawn:
        made_tab = TrainTab(Joined(host, PeftEngine(), Session()))
        made_tab.draw(drawn)
    return made_tab


def root(component):
    """The page that a component stands on."""
    return component if component.parent is None else root(component.parent)


def under(tab, name, method):
    """What is said of a name: the words, and the ways on that can be clicked."""
    parts = tab._form.components
    said = tab._describe_name({parts["name"]: name, parts["if_exists"]: "ask", parts["method"]: method})
    words = re.search(r"exists: ([^.]*)\.", said)
    return (words[1] if words else ""), re.findall(r">([^<]+)</", said.partition(". ")[2].replace("</p>", ""))


@pytest.mark.parametrize(
    ("files", "words", "going_on"),
    [
        (left("finished"), "a finished LoRA", "train it further"),
        (
            {**lora(), "training_log.json": {"ended": "stopped"}},
            "the LoRA of a run that was stopped",
            "go on with it",
        ),
        (
            {**lora(), "training_log.json": {"ended": "failed"}},
            "the LoRA of a run that broke down",
            "go on with it",
        ),
        (CUT_OFF, "a run that was cut off", "go on with it"),
        (lora(), "a LoRA made elsewhere", "train it further"),
    ],
    ids=["finished", "stopped", "failed", "cut off", "made elsewhere"],
)
def test_a_lora_of_every_standing(tab, request, files, words, going_on):
    name = request.node.callspec.id.replace(" ", "-")
    made(tab._context.host.folders.loras, name, files)
    ways = [going_on, "replace it (a backup is kept)", f"use a new name: {name}-2"]
    assert under(tab, name, "lora") == (words, ways)
    assert under(tab, name, "full") == ("", [])


def test_a_whole_model_is_looked_for_where_it_would_be_kept(tab):
    made(tab._context.host.folders.models, "whole", MODEL)
    made(tab._context.host.folders.models, "whole-failed", {**MODEL, "training_log.json": {"ended": "failed"}})
    kept = "replace it (a backup is kept)"
    assert under(tab, "whole", "full") == ("a model made elsewhere", [kept, "use a new name: whole-2"])
    ways = ["go on with it", kept, "use a new name: whole-failed-2"]
    assert under(tab, "whole-failed", "full") == ("the model of a run that broke down", ways)
    assert under(tab, "whole", "lora") == ("", [])


@pytest.mark.parametrize("name", ["", "  ", "nowhere", None])
def test_a_name_that_is_free_is_told_nothing(tab, name):
    assert under(tab, name, "lora") == ("", [])


def test_what_adding_files_says_is_not_written_over_by_what_the_data_are(tab, tmp_path):
    """Both are written whenever the chosen data change: a refusal in the same place would flash by."""
    (tmp_path / "photo.jpg").write_text("x")
    data = tab._form.components["data"]
    menu, said = tab._on_upload({tab._add_button: [str(tmp_path / "photo.jpg")], data: ["story.txt"]})
    assert menu["value"] == ["story.txt"] and "photo.jpg cannot be learned from" in said
    writes = {fn.targets[0] for fn in root(tab._add_message).fns.values() if tab._add_message in fn.outputs}
    assert (tab._add_button._id, "upload") in writes and (data._id, "change") not in writes


def test_start_asks_what_is_to_become_of_a_lora_before_a_run_begins(tab):
    panel, parts = tab._run_panel, tab._form.components
    made(tab._context.host.folders.loras, "asked", left("finished"))
    given = {part: part.value for part in parts.values()}
    given |= {parts["name"]: "asked", parts["data"]: ["story.txt"], parts["if_exists"]: "ask"}

    async def said():
        return [words async for words in panel._on_start(given)]

    (words,) = asyncio.run(said())
    assert "asked exists: a finished LoRA." in words and "press Start again" in words
    assert "train it further" in words and "replace it (a backup is kept)" in words
    assert tab._context.session.latest("training") is None
