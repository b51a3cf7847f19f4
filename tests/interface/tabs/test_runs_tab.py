"""The Runs tab: the card of a run, deleting, the trash, merging, and GGUF."""

from __future__ import annotations

import asyncio
import re
from functools import partial
from html import unescape

import gradio as gr
import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Job, JobEnded, Request, Session
from training_pro.interface.base import Form, PageContext
from training_pro.interface.tabs import runs_tab
from training_pro.interface.tabs.merge_panel import MergePanel
from training_pro.records.folder import hold_run_lock, inventory
from training_pro.records.remote import remote_control
from training_pro.records.report import judge_run
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, LOG, write_files
from training_pro.tests.records.remote.test_remote_control import wait_for

GRAPH = [{"current_steps": s, "loss": 3 - s / 4, "smoothed_loss": 3 - s / 4, "epoch": s / 8} for s in range(1, 9)]


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


@pytest.fixture
def tab(folders):
    return draw_tab(folders)


def draw_tab(folders, engine=None, models=None):
    with gr.Blocks(), gr.Tab() as parent:
        tab = runs_tab.RunsTab(PageContext(FakeHost(folders=folders), engine, Session(), models), Form())
        tab.draw(parent)
    return tab


def tab_inputs(tab, name, other="", **more):
    return {tab._chosen: name, tab._other: other, tab._name: "", **more}


async def first_of(stream):
    return await anext(stream)


async def all_of(stream):
    return [each async for each in stream]


def card_of(folders, **more):
    """The card of a run whose folder has these additional files."""
    folder = write_files(folders.loras, "story", {**FINISHED, **more})
    return runs_tab.run_card(inventory.read_entry(folder, folders), "story")


def test_the_verdict_is_a_sentence(folders):
    verdict = judge_run(GRAPH, {})
    shown = card_of(folders, **{"training_log.json": {**LOG, "verdict": verdict.as_log()}})
    assert f"<p>{verdict.text}</p>" in shown
    assert verdict.kind not in shown.replace(verdict.text, "") and "evidence" not in shown


@pytest.mark.parametrize("name", [None, "", "nowhere", "story/checkpoint-99", ".."])
def test_nothing_is_shown_of_a_missing_run(folders, tab, name):
    write_files(folders.loras, "story", FINISHED)
    assert tab._show_run(name)[:2] == (runs_tab.CHOOSE_HINT, "")
    shown, note, *_ = tab._show_run("story/checkpoint-4-epoch-1")
    assert "<h4>story/checkpoint-4-epoch-1</h4>" in shown and note == "the good one"


@pytest.mark.parametrize(
    "log", [LOG, {**LOG, "verdict": "of another program"}, "no JSON"], ids=["none", "strange", "broken"]
)
def test_without_a_verdict_there_is_no_text_in_its_place(folders, log):
    shown = card_of(folders, **{"training_log.json": log, "training_graph.json": GRAPH})
    assert shown.count("<p>") == 1 and "<p>Use the actions below on:</p>" in shown
    assert "<svg" in shown and ">checkpoint-4-epoch-1</button> checkpoint, " in shown


def test_the_report_is_shown_as_a_page_of_its_own(folders):
    page = '<!doctype html><title>"story" &amp; more</title><p>It <b>learned</b>.</p>'
    assert "iframe" not in card_of(folders)
    shown = card_of(folders, **{"report.html": page})
    (framed,) = re.findall(r'<iframe [^>]*sandbox="" srcdoc="([^"]*)"></iframe>', shown)
    assert unescape(framed) == page


def test_a_deleted_run_disappears_from_the_list_and_its_card_too(folders, tab):
    """Otherwise the next action would apply to a missing run."""
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "night", FINISHED)
    delete = tab._handler(tab._on_delete)
    message, table, _, chosen, other = delete(tab_inputs(tab, "story", other="story"))
    assert "story is in the trash" in message and "tp-good" in message
    assert "story" not in table and "night" in table
    assert chosen == other == "" and tab._show_state("story")[0] == runs_tab.CHOOSE_HINT
    _, _, _, chosen, other = delete(tab_inputs(tab, "night/checkpoint-6-user", other="night"))
    stays = gr.update()
    assert chosen == "" and other == stays
    assert tab._list_runs(tab_inputs(tab, "night"))[2:] == (stays, stays)


def test_the_card_shows_a_checkpoint_as_slim_afterwards(folders, tab):
    write_files(folders.loras, "story", FINISHED)
    tab._handler(tab._on_slim)(tab_inputs(tab, "story/checkpoint-4-epoch-1"))
    card, *_ = tab._show_state("story/checkpoint-4-epoch-1")
    assert ">checkpoint-4-epoch-1</button> LoRA only" in card


@pytest.mark.parametrize(("here", "where"), [(True, "model menu above"), (False, "on the Model tab")])
def test_a_merged_model_is_in_the_menu_or_the_message_says_where(folders, here, where):
    class MergeEngine:
        def merge(self, asked, host, job):
            return JobEnded(outcome="finished", text=f"toy with {asked.lora} merged in is there")

    write_files(folders.loras, "story", FINISHED)
    with gr.Blocks():
        menu = gr.Dropdown([]) if here else None
        tab = draw_tab(folders, MergeEngine(), menu)
    stream = tab._merge_panel._on_merge(tab._chosen, tab._name, tab_inputs(tab, "story") | {tab._name: "new"})
    last = asyncio.run(all_of(stream))[-1]
    assert where in last and "tp-good" in last


def test_a_merge_on_the_page_takes_the_shard_size_of_the_form(folders):
    asked = []

    class MergeEngine:
        def merge(self, request, host, job):
            asked.append(request.shard_size)
            return JobEnded(outcome="finished", text="done")

    write_files(folders.loras, "story", FINISHED)
    with gr.Blocks():
        form = Form()
        form.draw("shard_size")
        context = PageContext(FakeHost(folders=folders), MergeEngine(), Session())
        panel, chosen, name = MergePanel(context, form), gr.Textbox(), gr.Textbox()
    inputs = {chosen: "story", name: "new", form.components["shard_size"]: "2GB"}
    asyncio.run(all_of(panel._on_merge(chosen, name, inputs)))
    assert asked == ["2GB"]
    last = asyncio.run(all_of(panel._on_merge(chosen, name, {**inputs, form.components["shard_size"]: "two"})))[-1]
    assert "&#39;two&#39; is not a file size. Enter a size such as 500MB or 5GB." in last and asked == ["2GB"]


def test_an_existing_gguf_file_is_reported_as_replaced(folders):
    class GgufEngine:
        def export_gguf(self, asked, host):
            file = host.folders.loras / "story" / "story.gguf"
            file.write_text("x")
            return file

    write_files(folders.loras, "story", FINISHED)
    tab = draw_tab(folders, GgufEngine())
    write = tab._handler(tab._on_gguf)
    first, second = (write(tab_inputs(tab, "story"))[0] for _ in range(2))
    assert "was saved. To use the LoRA in llama.cpp" in first
    assert "was replaced. To use the LoRA in llama.cpp" in second
    assert "tp-good" in first and "tp-good" in second


def test_a_second_run_is_picked_for_the_comparison(folders, tab):
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "night", FINISHED)
    inputs = tab_inputs(tab, "story/checkpoint-6-user") | {tab._picking: False}
    inputs[tab._runs] = tab._list_runs(inputs)[1]
    message, picking, table = tab._on_compare(inputs)
    assert "compare with story." in message and picking
    assert 'data-tp-box="tp-runs-other" data-tp-text="night"' in table
    assert 'data-tp-text="story"' not in table, "a run is not compared with itself"
    assert tab._on_compare(inputs | {tab._picking: True})[:2] == ("", False), "a second press cancels"
    assert tab._on_picked(inputs | {tab._picking: True})[2] == tab._list_html(inputs)


class TrainEngine:
    """Remembers which run was started, and from which checkpoint."""

    def __init__(self):
        self.started = []

    def train(self, settings, host, job, *, resume=""):
        self.started.append((settings.what.name, settings.what.if_exists, resume))
        return JobEnded(outcome="finished", text="done")

    def attach_lora(self, name, strength, host, job):
        self.started.append((name, strength))
        return JobEnded(outcome="finished", text=f"{name} is attached.")


PARAMETERS = {"name": "other", "data": ["story.txt"], "rank": 4}


@pytest.mark.parametrize(
    ("chosen", "resume"), [("night", "newest"), ("night/checkpoint-4", "checkpoint-4")], ids=["run", "checkpoint"]
)
def test_a_run_that_was_cut_off_is_resumed_from_the_chosen_checkpoint(folders, chosen, resume):
    write_files(folders.loras, "night", {**CUT_OFF, "training_parameters.json": PARAMETERS})
    engine = TrainEngine()
    tab = draw_tab(folders, engine)
    assert tab._show_run(chosen)[2]["visible"]
    answer = tab._use_panel._on_resume(tab._chosen, tab._status, {tab._chosen: chosen})
    assert "Resuming night." in answer[tab._status]
    tab._context.session.latest("training").log.wait_closed()
    assert engine.started == [("night", "continue", resume)]


@pytest.mark.parametrize("name", ["story", "nowhere", "", "../night"])
def test_a_finished_or_missing_run_is_not_resumed(folders, tab, name):
    write_files(folders.loras, "story", {**FINISHED, "training_parameters.json": PARAMETERS})
    assert not tab._show_run(name)[2]["visible"]
    with pytest.raises(SavingError):
        tab._use_panel._on_resume(tab._chosen, tab._status, {tab._chosen: name})
    assert tab._context.session.current is None


def test_a_run_of_another_program_is_followed_and_controlled(folders, tab):
    write_files(folders.loras, "night", CUT_OFF)
    job = Job("training", "of another program")
    assert not tab._show_run("night")[3]["visible"]
    with hold_run_lock("night", folders), remote_control("night", job, folders):
        card, _, resume, row, pause, unpause, *_ = tab._show_run("night")
        assert "In progress: " in card and row["visible"] and not resume["visible"]
        assert pause["visible"] and not unpause["visible"]
        press = partial(tab._remote_panel._on_request, "pause", tab._chosen)
        message, pause, unpause = press({tab._chosen: "night/checkpoint-4"})
        assert "night pauses after this step." in message
        assert unpause["visible"] and not pause["visible"]
        wait_for(lambda: job.control.asked(Request.PAUSE))
        wait_for(lambda: tab._show_run("night")[5]["visible"])
    refusal, pause, unpause = press({tab._chosen: "night"})
    assert "is not being trained now" in refusal and "visible" not in {**pause, **unpause}
    assert not tab._show_run("night")[3]["visible"]


def test_the_lora_is_attached_at_full_strength(folders):
    write_files(folders.loras, "story", FINISHED)
    engine = TrainEngine()
    tab = draw_tab(folders, engine)
    attach = partial(tab._use_panel._on_attach, tab._chosen)
    assert "is attached" in asyncio.run(all_of(attach({tab._chosen: "story/checkpoint-6-user"})))[-1]
    assert "There is no LoRA" in asyncio.run(first_of(attach({tab._chosen: "nowhere"})))
    assert engine.started == [("story/checkpoint-6-user", 1.0)]


@pytest.mark.parametrize(
    ("chosen", "reason"),
    [
        ("night", "has no saved LoRA, so you can't attach, test, copy, merge or export it. Choose one of its"),
        ("night/checkpoint-4", ""),
        ("empty", "empty has no saved LoRA, so you can't attach, test, copy, merge or export it.</p>"),
        ("story", ""),
        ("nowhere", ""),
    ],
)
def test_actions_on_a_lora_are_disabled_without_a_saved_lora(folders, tab, chosen, reason):
    write_files(folders.loras, "night", CUT_OFF)
    write_files(folders.loras, "story", FINISHED)
    write_files(folders.loras, "empty", {"training_parameters.json": PARAMETERS, "training_log.json": LOG})
    *_, note, attach, test, copy, merge, gguf = tab._show_run(chosen)
    assert reason in unescape(note) and bool(reason) == bool(note)
    assert {update["interactive"] for update in (attach, test, copy, merge, gguf)} == {not reason}
    assert tab._show_state(chosen)[-6] == note


def test_a_run_in_progress_without_a_checkpoint_says_what_to_do(folders, tab):
    write_files(folders.loras, "empty", {"training_parameters.json": PARAMETERS})
    with hold_run_lock("empty", folders):
        assert "export it. Save a checkpoint first." in tab._show_run("empty")[6]


def test_the_settings_of_a_run_are_copied_to_the_form(folders):
    write_files(folders.loras, "story", {**FINISHED, "training_parameters.json": PARAMETERS})
    form = Form()
    with gr.Blocks(), gr.Tab() as parent:
        form.draw("name", "rank")
        tab = runs_tab.RunsTab(PageContext(FakeHost(folders=folders), None, Session()), form)
        tab.draw(parent)
    updates = tab._use_panel._on_copy(tab._chosen, tab._status, {tab._chosen: "story/checkpoint-6-user"})
    assert updates[form.components["rank"]]["value"] == 4
    assert "settings of story" in updates[tab._status]


def test_a_run_that_has_ended_is_shown_so_without_a_new_choice(folders, tab):
    """The page follows the kind of the running job; a note that is being typed stays."""
    write_files(folders.loras, "night", CUT_OFF)
    with hold_run_lock("night", folders):
        card, *_ = tab._show_state("night")
        assert "In progress" in card
    card, resume, remote, *_ = tab._show_state("night")
    assert "In progress" not in card and resume["visible"] is True and remote["visible"] is False


def test_answers_about_a_run_come_in_the_order_of_the_choices(tab):
    """On a slow machine, the answer to an earlier question once replaced the run that was chosen since."""
    page = tab._run_card
    while page.parent is not None:
        page = page.parent
    showing = [handler for handler in page.fns.values() if tab._run_card in handler.outputs]
    assert len(showing) > 5
    assert {(handler.concurrency_id, handler.concurrency_limit) for handler in showing} == {
        ("training_pro_run_card", 1)
    }
