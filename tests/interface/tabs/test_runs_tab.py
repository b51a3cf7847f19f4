"""The Runs tab: how a run went, in words."""

from __future__ import annotations

import asyncio
import re
from html import unescape

import gradio as gr
import pytest
from training_pro.core.jobs.events import Ended
from training_pro.core.jobs.session import Session
from training_pro.interface.base.page_context import Joined
from training_pro.interface.tabs import runs_tab
from training_pro.records.folder import inventory, trash
from training_pro.records.report.verdict import judge_run
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import FINISHED, LOG, made

GRAPH = [{"current_steps": s, "loss": 3 - s / 4, "smoothed_loss": 3 - s / 4, "epoch": s / 8} for s in range(1, 9)]


@pytest.fixture
def folders(tmp_path):
    return made_folders(tmp_path)


@pytest.fixture
def tab(folders):
    return drawn(folders)


def drawn(folders, engine=None, models=None):
    with gr.Blocks(), gr.Tab() as around:
        made_tab = runs_tab.RunsTab(Joined(FakeHost(folders=folders), engine, Session(), models))
        made_tab.draw(around)
    return made_tab


def chosen(tab, name, other=runs_tab.NOBODY, **more):
    return {tab._chosen: name, tab._other: other, tab._name: "", **more}


async def first_of(stream):
    return await anext(stream)


async def all_of(stream):
    return [each async for each in stream]


def went(folders, **more):
    """What is shown of a run whose folder holds these files too."""
    folder = made(folders.loras, "story", {**FINISHED, **more})
    return runs_tab.how_it_went(inventory.one(folder, folders))


def test_the_verdict_is_a_sentence(folders):
    judged = judge_run(GRAPH, {})
    shown = went(folders, **{"training_log.json": {**LOG, "verdict": judged.as_log()}})
    assert f"<p>{judged.text}</p>" in shown
    assert "not known" not in shown and "evidence" not in shown


@pytest.mark.parametrize("name", [None, "", "nowhere", "story/checkpoint-99", ".."])
def test_of_what_is_gone_nothing_is_shown(folders, name):
    made(folders.loras, "story", FINISHED)
    tab = runs_tab.RunsTab(Joined(FakeHost(folders=folders), None, Session()))
    assert tab._show_run(name) == ("", "")
    shown, note = tab._show_run("story/checkpoint-4-epoch-1")
    assert "<h4>story</h4>" in shown and note == "the good one"


@pytest.mark.parametrize(
    "log", [LOG, {**LOG, "verdict": "of another program"}, "no JSON"], ids=["none", "strange", "broken"]
)
def test_without_a_verdict_nothing_is_said_in_its_place(folders, log):
    shown = went(folders, **{"training_log.json": log, "training_graph.json": GRAPH})
    assert "<p>" not in shown
    assert "<svg" in shown and "checkpoint-4-epoch-1: checkpoint" in shown


def test_the_report_is_shown_as_a_page_of_its_own(folders):
    page = '<!doctype html><title>"story" &amp; more</title><p>It <b>learned</b>.</p>'
    assert "iframe" not in went(folders)
    shown = went(folders, **{"report.html": page})
    (framed,) = re.findall(r'<iframe [^>]*sandbox="" srcdoc="([^"]*)"></iframe>', shown)
    assert unescape(framed) == page


def test_what_is_deleted_is_gone_from_the_menus_and_from_below(folders, tab):
    """A menu that still holds it would do the next thing to what is not there."""
    made(folders.loras, "story", FINISHED)
    made(folders.loras, "night", FINISHED)
    delete = tab._handler(tab._on_delete)
    said, table, menu, others, card = delete(chosen(tab, "story", other="story"))
    assert "story is in the trash" in said and "tp-good" in said
    assert "story" not in table and "night" in table
    assert menu["value"] is None and "story" not in menu["choices"]
    assert others["value"] == runs_tab.NOBODY and "story" not in others["choices"]
    assert card == ""
    _, _, menu, others, _ = delete(chosen(tab, "night/checkpoint-6-user", other="night"))
    assert menu["value"] is None and others["value"] == "night"
    assert tab._list_runs(chosen(tab, "night"))[1]["value"] == "night"


def test_what_is_slimmed_is_told_as_it_is_now(folders, tab):
    made(folders.loras, "story", FINISHED)
    *_, card = tab._handler(tab._on_slim)(chosen(tab, "story/checkpoint-4-epoch-1"))
    assert "checkpoint-4-epoch-1: LoRA only" in card


def test_the_trash_is_emptied_by_a_second_click_soon_after_the_first(folders, tab, monkeypatch):
    made(folders.loras, "story", FINISHED)
    trash.throw_away("story/checkpoint-6-user", folders)
    first = asyncio.run(first_of(tab._on_empty(chosen(tab, "story") | {tab._confirmation: runs_tab.Asked()})))
    assert first[tab._empty_button].startswith("Really: 1 thing, ") and len(trash.thrown(folders)) == 1
    asked = first[tab._confirmation]
    trash.throw_away("story", folders)  # more than what was asked about
    monkeypatch.setattr(runs_tab, "ASKS_SECONDS", 0)
    more, back = asyncio.run(all_of(tab._on_empty(chosen(tab, None) | {tab._confirmation: asked})))
    assert more[tab._empty_button].startswith("Really: 2 things, ") and back == {
        tab._empty_button: "Empty the trash"
    }
    late, _ = asyncio.run(all_of(tab._on_empty(chosen(tab, None) | {tab._confirmation: more[tab._confirmation]})))
    assert late[tab._empty_button].startswith("Really: 2 things, ") and len(trash.thrown(folders)) == 2
    asked = runs_tab.Asked(late[tab._empty_button], until=asked.until)
    (done,) = asyncio.run(all_of(tab._on_empty(chosen(tab, None) | {tab._confirmation: asked})))
    assert "The trash is empty" in done[tab._status] and trash.thrown(folders) == []
    (nothing,) = asyncio.run(all_of(tab._on_empty(chosen(tab, None) | {tab._confirmation: runs_tab.Asked()})))
    assert "There is nothing in the trash." in nothing[tab._status]


@pytest.mark.parametrize(("here", "where"), [(True, "menu of models above"), (False, "of the Model tab")])
def test_a_merged_model_is_in_the_menu_or_it_is_said_where(folders, here, where):
    class Baking:
        def merge(self, asked, host, job):
            return Ended(outcome="finished", text=f"toy with {asked.lora} baked in is there")

    made(folders.loras, "story", FINISHED)
    with gr.Blocks():
        menu = gr.Dropdown([]) if here else None
        tab = drawn(folders, Baking(), menu)
    pressed = tab._merge_panel._on_merge(tab._chosen, tab._name, chosen(tab, "story") | {tab._name: "new"})
    last = asyncio.run(all_of(pressed))[-1]
    assert where in last and "tp-good" in last


def test_a_gguf_file_that_was_there_is_said_to_be_written_again(folders):
    class Writing:
        def gguf(self, asked, host):
            file = host.folders.loras / "story" / "story.gguf"
            file.write_text("x")
            return file

    made(folders.loras, "story", FINISHED)
    tab = drawn(folders, Writing())
    write = tab._handler(tab._on_gguf)
    first, second = (write(chosen(tab, "story"))[0] for _ in range(2))
    assert "is written. It is for llama.cpp" in first and "is written again. It is for llama.cpp" in second
    assert "tp-good" in first and "tp-good" in second
