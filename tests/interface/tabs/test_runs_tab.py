"""The Runs tab: the card of a run, its actions, the trash, comparing, merging, and GGUF."""

from __future__ import annotations

import os
import re
from html import unescape

import pytest
from training_pro.core.jobs import Job, JobEnded, Request, Session
from training_pro.interface.base import PageContext
from training_pro.interface.tabs import RunsTab, TryTab
from training_pro.interface.tabs.run_list import list_runs
from training_pro.records.folder import hold_run_lock, trash
from training_pro.records.report import judge_run, read_steps
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.interface.visit import open_tab
from training_pro.tests.records.on_disk import CUT_OFF, FINISHED, LOG, write_files
from training_pro.tests.records.remote.test_remote_control import in_progress, wait_for

GRAPH = [
    {"current_steps": s, "loss": 3 - s / 4, "smoothed_loss": 3 - s / 4, "epoch": s / 8, "seconds": 30}
    for s in range(1, 9)
]
POINT = {"epoch": 1.0, "eval_perplexity": 1.0, "eval_accuracy": 0.5, "eval_by_source": {}, "eval_tokens": 9}
POINT |= {"eval_seconds": 1.0, "context_gain": None, "why": "end", "kept_aside": "a"}
PARAMETERS = {"name": "other", "data": ["story.txt"], "rank": 4}
LORA_BUTTONS = [f"runs-{action}" for action in ("attach", "test", "own", "merge", "gguf")]


class Engine:
    """Remembers what was asked of it."""

    def __init__(self):
        self.asked = []

    def train(self, settings, host, job, *, resume=""):
        self.asked.append((settings.what.name, settings.what.if_exists, resume))
        return JobEnded(outcome="finished", text="done")

    def attach_lora(self, name, strength, host, job):
        self.asked.append((name, strength))
        return JobEnded(outcome="finished", text=f"{name} is attached.")

    def merge(self, request, host, job):
        self.asked.append(request.shard_size)
        return JobEnded(outcome="finished", text=f"toy with {request.lora} merged in is there")

    def export_gguf(self, asked, host):
        file = host.folders.loras / "story" / "story.gguf"
        file.write_text("x")
        return file


@pytest.fixture
def folders(tmp_path):
    folders = make_folders(tmp_path)
    write_files(folders.loras, "story", {**FINISHED, "training_parameters.json": PARAMETERS})
    write_files(folders.loras, "night", {**CUT_OFF, "training_parameters.json": PARAMETERS})
    return folders


@pytest.fixture
def context(folders):
    return PageContext(FakeHost(folders=folders), Engine(), Session())


@pytest.fixture
def page(context):
    page = open_tab(RunsTab, context, "name", "rank", "shard_size")
    page.press("Refresh")
    return page


def choose(page, name):
    return page.press("runs-chosen", "change", runs_chosen=name)


def test_the_card_has_the_verdict_as_a_sentence_and_the_report_as_a_page_of_its_own(page, folders):
    verdict = judge_run(read_steps(GRAPH), [], {})
    report = '<!doctype html><title>"story" &amp; more</title>It <b>learned</b>.'
    log = {**LOG, "verdict": vars(verdict)}
    write_files(folders.loras, "story", {"training_log.json": log, "report.html": report})
    card = choose(page, "story")["runs-one"]
    assert f"<p>{verdict.text}</p>" in card and "evidence" not in card
    for strange in (LOG, {**LOG, "verdict": "of another program"}, "no JSON"):
        write_files(folders.loras, "night", {**FINISHED, "training_log.json": strange})
        assert choose(page, "night")["runs-one"].count("<p>") == 1
    (framed,) = re.findall(r'<iframe [^>]*sandbox="" srcdoc="([^"]*)"></iframe>', card)
    assert unescape(framed) == report


def test_nothing_is_shown_of_a_missing_run(page):
    for name in (None, "", "nowhere", "story/checkpoint-99", ".."):
        shown = choose(page, name)
        assert "<h4>" not in shown["runs-one"] and shown["runs-note"] == ""
    shown = choose(page, "story/checkpoint-4-epoch-1")
    assert "<h4>story/checkpoint-4-epoch-1</h4>" in shown["runs-one"] and shown["runs-note"] == "the good one"


def test_a_deleted_run_disappears_from_the_list_and_its_card_too(page):
    """Otherwise the next action would apply to a missing run."""
    shown = page.press("runs-delete", runs_chosen="story", runs_other="story")
    assert "story is in the trash" in shown["runs-said"] and "tp-good" in shown["runs-said"]
    assert "story" not in shown["runs-table"] and "<h4>" not in shown["runs-one"]
    assert page.held[page.named["runs-chosen"]] == page.held[page.named["runs-other"]] == ""
    page.press("runs-delete", runs_chosen="night/checkpoint-4", runs_other="night")
    assert page.held[page.named["runs-chosen"]] == "" and page.held[page.named["runs-other"]] == "night"
    assert "is restored" in page.press("runs-undo")["runs-said"]


def test_what_deletes_for_good_happens_at_the_second_click_on_the_same_question(page, folders, monkeypatch):
    monkeypatch.setattr("training_pro.interface.base.handlers.CONFIRM_SECONDS", 0)
    state = folders.loras / "story" / "checkpoint-4-epoch-1" / "run_state.json"
    asked, after = page.steps("runs-slim", runs_chosen="story/checkpoint-4-epoch-1")[:2]
    assert asked["runs-slim"] == "Never resume from 1 checkpoint?" and state.is_file()
    assert after["runs-slim"] == "Shrink older checkpoints", "the question is withdrawn after a while"
    page.press("runs-slim")
    assert state.is_file(), "a second click that comes too late asks again"
    trash.move_to_trash("night/checkpoint-4", folders)
    monkeypatch.setattr("training_pro.interface.base.handlers.CONFIRM_SECONDS", 0.3)
    for count in ("1 item", "2 items"):
        assert f"Delete {count} permanently (" in page.steps("runs-empty")[0]["runs-empty"]
        assert len(trash.list_trash(folders)) == int(count[0]), "more than the user was asked about"
        if count == "1 item":
            trash.move_to_trash("night", folders)


def test_a_merged_model_takes_the_shard_size_of_the_form_and_the_message_says_where_it_is(page, context):
    last = page.press("runs-merge", runs_chosen="story", runs_name="new", shard_size="2GB")["runs-said"]
    assert "on the Model tab" in last and "tp-good" in last and context.engine.asked == ["2GB"]
    assert "&#39;two&#39; is not a file size." in page.press("runs-merge", shard_size="two")["runs-said"]
    assert context.engine.asked == ["2GB"]
    for word in ("was saved.", "was replaced."):
        assert word in page.press("runs-gguf")["runs-said"]


def test_a_second_run_is_picked_for_the_comparison(page):
    choose(page, "story/checkpoint-6-user")
    picking = page.press("runs-compare")
    assert "compare with story." in picking["runs-said"]
    assert 'data-tp-box="tp-runs-other" data-tp-text="night"' in picking["runs-table"]
    assert 'data-tp-text="story"' not in picking["runs-table"], "a run is not compared with itself"
    cancelled = page.press("runs-compare")
    assert cancelled["runs-said"] == "" and "tp-runs-other" not in cancelled["runs-table"]
    page.press("runs-compare")
    picked = page.press("runs-other", "change", runs_other="night")
    assert "<h4>story and night</h4>" in picked["runs-compared"] and "tp-runs-other" not in picked["runs-table"]
    assert page.press("runs-other", "change", runs_other="story")["runs-compared"] == ""


def test_two_runs_are_compared_side_by_side(page, folders):
    def compare(**more):
        for name, loss, rank in (("a", 3.0, 8), ("b", 2.0, 64)):
            points = [{**POINT, "current_steps": step, "eval_loss": x} for step, x in ((4, loss), (8, 9.0))]
            parameters = {"name": name, "rank": rank, "data": ["x"]}
            files = {"training_graph.json": [*GRAPH, *points], "training_parameters.json": parameters}
            write_files(folders.loras, name, {**FINISHED, **files, **(more if name == "b" else {})})
        return page.press("runs-other", "change", runs_chosen="a", runs_other="b")["runs-compared"]

    html = compare()
    rows = [re.findall(r"<td>(.*?)</td>", row) for row in re.findall(r"<tr>(.*?)</tr>", html)]
    assert ["best validation loss", "3.0000 at step 4", "2.0000 at step 4"] in rows
    listed = {run.entry.name: run.validation_loss for run in list_runs(folders)}
    assert (listed["a"], listed["b"]) == (9.0, 9.0), "that of what was saved"
    assert ["training time", "4 min 00 s", "4 min 00 s"] in rows and ["LoRA Rank", "8", "64"] in rows
    assert ">Data<" not in html and html.count("<svg") == 2 and "be compared" not in html
    other_split = [*GRAPH, {**POINT, "current_steps": 8, "eval_loss": 2.0, "kept_aside": "b"}]
    assert "used different validation splits" in compare(**{"training_graph.json": other_split})
    assert "use different models" in compare(**{"training_log.json": {**LOG, "base_model_name": "another"}})
    assert "settings that b was trained with are unknown" in compare(**{"training_parameters.json": "no JSON"})


@pytest.mark.parametrize(("chosen", "resume"), [("night", "newest"), ("night/checkpoint-4", "checkpoint-4")])
def test_a_run_that_was_cut_off_is_resumed_from_the_chosen_checkpoint(page, context, chosen, resume):
    assert choose(page, chosen)["runs-resume"]["visible"]
    assert "Resuming night." in page.press("runs-resume")["runs-said"]
    context.session.latest("training").log.wait_closed()
    assert context.engine.asked == [("night", "continue", resume)]


def test_a_continued_lora_that_was_cut_off_before_its_first_checkpoint_is_resumed(page, folders):
    """It goes on from the LoRA that it began with, which the journal names."""
    backup = {f"Backup-1/{name}": content for name, content in FINISHED.items()}
    journal = {"action": "run", "began_at_step": 0, "backup": "Backup-1", "initial_lora": True}
    run = {**backup, "training_parameters.json": PARAMETERS}
    write_files(folders.loras, "begun", {**run, ".journal.json": journal})
    write_files(folders.loras, "fresh", {**run, ".journal.json": {**journal, "initial_lora": False}})
    page.press("Refresh")
    assert choose(page, "begun")["runs-resume"]["visible"]
    assert not choose(page, "fresh")["runs-resume"]["visible"]


def test_try_it_opens_with_the_newest_lora(context, folders):
    write_files(folders.loras, "elder", FINISHED)
    os.utime(folders.loras / "elder", (0, 0))
    tab = open_tab(TryTab, context)
    assert tab.press("The tab", "select")["lora"]["value"] == "story"


def test_a_finished_or_missing_run_is_not_resumed(page, context):
    for name in ("story", "nowhere", "", "../night"):
        assert not choose(page, name)["runs-resume"]["visible"]
        assert "tp-bad" in page.press("runs-resume")["runs-said"]
    assert context.session.latest("training") is None


def test_a_run_of_another_program_is_followed_and_controlled_until_its_end(page, folders):
    job = Job("training", "of another program")
    assert not choose(page, "night")["runs-remote"]["visible"]
    with in_progress("night", job, folders):
        shown = page.press("working", "change") if "working" in page.named else choose(page, "night")
        assert "In progress: " in shown["runs-one"] and shown["runs-remote"]["visible"]
        assert not shown["runs-resume"]["visible"]
        pressed = page.press("Pause", runs_chosen="night/checkpoint-4")
        assert "night pauses after this step." in pressed["runs-said"]
        wait_for(lambda: job.control.asked(Request.PAUSE))
    assert "is not being trained now" in page.press("Pause", runs_chosen="night")["runs-said"]
    shown = choose(page, "night")
    assert "In progress" not in shown["runs-one"] and not shown["runs-remote"]["visible"]


def test_the_lora_is_attached_at_full_strength(page, context):
    assert "is attached" in page.press("runs-attach", runs_chosen="story/checkpoint-6-user")["runs-said"]
    assert "There is no LoRA" in page.press("runs-attach", runs_chosen="nowhere")["runs-said"]
    assert context.engine.asked == [("story/checkpoint-6-user", 1.0)]


def test_actions_on_a_lora_are_disabled_without_a_saved_lora(page, folders):
    write_files(folders.loras, "empty", {"training_parameters.json": PARAMETERS, "training_log.json": LOG})
    for chosen, reason in (
        ("night", "Choose one of its"),
        ("night/checkpoint-4", ""),
        ("empty", "has no saved LoRA"),
        ("story", ""),
        ("nowhere", ""),
    ):
        shown = choose(page, chosen)
        assert reason in shown["runs-no-lora"] and bool(reason) == bool(shown["runs-no-lora"])
        assert {shown[button]["interactive"] for button in LORA_BUTTONS} == {not reason}
    (folders.loras / "empty" / "training_log.json").unlink()
    with hold_run_lock("empty", folders):
        assert "Save a checkpoint first." in choose(page, "empty")["runs-no-lora"]


def test_the_settings_of_a_run_are_copied_to_the_form(page):
    copied = page.press("runs-settings", runs_chosen="story/checkpoint-6-user")
    assert copied["rank"]["value"] == 4 and "settings of story" in copied["runs-said"]


def test_a_note_that_cannot_be_written_says_so(page, folders):
    notes = folders.loras / "story" / "notes.txt"
    notes.unlink()
    notes.mkdir()
    said = page.press("runs-keep", runs_chosen="story", runs_note="the best one")
    assert "notes.txt" in said["runs-said"] and "tp-bad" in said["runs-said"] and "story" in said["runs-table"]
    notes.rmdir()
    assert "The note for story is saved." in page.press("runs-keep")["runs-said"]
    assert notes.read_text().strip() == "the best one"


def test_answers_about_a_run_come_in_the_order_of_the_choices(page):
    """On a slow machine, the answer to an earlier question once replaced the run that was chosen since."""
    card = page.named["runs-one"]
    showing = [handler for handler in page.blocks.fns.values() if card in handler.outputs]
    in_order = {(handler.concurrency_id, handler.concurrency_limit) for handler in showing}
    assert len(showing) > 5 and in_order == {("training_pro_run_card", 1)}
