"""The Train tab: existing LoRAs of the typed name, uploads, Check and Start, and what open pages show of a run."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from html import unescape
from types import SimpleNamespace

import pytest
from training_pro.core.host import ModelStatus
from training_pro.core.jobs import JobEnded, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import PageContext
from training_pro.interface.train import TrainTab
from training_pro.settings import presets
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.fakes import FakeHost, a_step, make_folders
from training_pro.tests.interface.visit import open_tab
from training_pro.tests.records.on_disk import CUT_OFF, lora, write_files

KEPT = "Replace it (a backup is kept)"


def files_of_run(ended):
    return {**lora(), "training_log.json": {"ended": ended}}


@pytest.fixture(scope="module")
def host(tmp_path_factory):
    return FakeHost(folders=make_folders(tmp_path_factory.mktemp("page")))


@pytest.fixture(scope="module")
def page(host):
    return open_tab(TrainTab, PageContext(host, PeftEngine(), Session()))


@pytest.fixture
def session():
    return Session()


@pytest.fixture
def fresh(host, session):
    """A page whose session no other test has used."""
    return open_tab(TrainTab, PageContext(host, PeftEngine(), session))


def existing_name(page, name, method="lora"):
    """The description of an existing name, and the labels of its buttons."""
    html = page.press("name", "change", name=name, if_exists="ask", method=method)["name-said"]
    words = re.search(r"exists: ([^.]*)\.", html)
    return (words[1] if words else ""), re.findall(r">([^<]+)</", html.partition(". ")[2].replace("</p>", ""))


def test_an_existing_name_is_described_with_what_can_be_done(page, host):
    for name, files, words, going_on in (
        ("finished", files_of_run("finished"), "a finished LoRA", "Continue training it"),
        ("failed", files_of_run("failed"), "the LoRA of a run that failed", "Resume it"),
        ("cut-off", CUT_OFF, "a run that was interrupted by a crash", "Resume it"),
        ("elsewhere", lora(), "a LoRA made elsewhere", "Continue training it"),
    ):
        write_files(host.folders.loras, name, files)
        assert existing_name(page, name) == (words, [going_on, KEPT, f"Use a new name: {name}-2"])
        assert existing_name(page, name, "full") == ("", [])
    write_files(host.folders.models, "whole", {"model.safetensors": "weights"})
    assert existing_name(page, "whole", "full") == ("a model made elsewhere", [KEPT, "Use a new name: whole-2"])
    for name in ("", "  ", "nowhere", "x" * 300, None):
        assert existing_name(page, name) == ("", [])


def test_the_data_preview_does_not_replace_the_message_of_add_files(page, host, tmp_path):
    (tmp_path / "photo.jpg").write_text("x")
    (tmp_path / "own.txt").write_text("My own story.")
    host.folders.examples.mkdir(exist_ok=True)
    (host.folders.examples / "story.txt").write_text("The demo's story.")
    demo = {**presets.DEMO, "add": [str(tmp_path / "own.txt")]}
    added = page.press("add", "upload", **demo)  # the demo's settings go with its story
    assert (added["data"]["value"], added["name"]["value"]) == (["own.txt"], "")
    assert float(added["epochs"]["value"]) == SETTINGS["epochs"].default
    added = page.press("add", "upload", **{**demo, "name": "mine"})
    assert "epochs" not in added or "value" not in added["epochs"]
    added = page.press("add", "upload", add=[str(tmp_path / "photo.jpg")], data=["story.txt"])
    assert added["data"]["value"] == ["story.txt"]
    assert "photo.jpg can't be used as a dataset" in unescape(added["add-said"])
    changed = page.press("data", "change", learning_rate="abc")
    assert "add-said" not in changed and "abc" not in changed["data-said"]


def test_the_suggested_name_follows_the_dataset_and_a_typed_one_stays(page):
    first = page.press("data", "change", data=["tale.txt"], name="", learning_rate="3e-4")
    assert first["name"].startswith("tale-") and first["if_exists"] == "ask"
    assert page.press("data", "change", data=["chats.jsonl"])["name"].startswith("chats-")
    assert not isinstance(page.press("data", "change", data=["story.txt"], name="mine")["name"], str)


def test_the_suggested_name_follows_the_model(page, host, monkeypatch):
    named = page.press("data", "change", data=["tale.txt"], name="")["name"]
    monkeypatch.setattr(host, "model_status", lambda: ModelStatus("other", "other", ()))
    page.fill(name=named)
    assert page.press("Model in memory", "change")["name"] == "tale-other" != named
    assert not isinstance(page.press("Model in memory", "change", name="tale-v2")["name"], str)


def test_a_choice_for_one_lora_is_not_remembered_for_the_next_visit(page, host):
    presets.save_form(host.folders.form, {"name": "story", "if_exists": "replace", "rank": 8})
    restored = page.until("Restoring the form", event="load")
    assert restored["rank"]["value"] == 8 and "if_exists" not in restored


def test_start_asks_about_an_existing_lora_as_check_does(place):
    write_files(place.folders.loras, "a", files_of_run("finished"))
    session = Session()
    page = open_tab(TrainTab, PageContext(place.host(), PeftEngine(), session))
    values = {"name": "a", "data": ["story.txt"], "cutoff": 32}
    report, refusal = page.press("check", **values)["answer"], page.press("start")["answer"]
    assert "Check: not ready" in report and session.latest("training") is None
    for html in (report, refusal):
        assert "'a' already exists: a finished LoRA." in unescape(re.sub("<[^>]*>", "", html))
        assert 'data-tp-go="if_exists"' in html
    ready = page.press("check", if_exists="new_name")["answer"]
    assert "Check: ready" in ready and "already exists" not in ready


def fail(session, host, text="No model.", steps=0):
    def work(job):
        for step in range(steps):
            job.log.append(a_step(step + 1))
        return JobEnded(outcome="failed", text=text)

    session.train("night", host, work).log.wait_closed()


@pytest.mark.long
def test_the_end_of_start_leaves_the_panel_to_the_run(host, session):
    """Gradio sends the last update of a stream again when it ends, perhaps after the run has failed."""
    engine = SimpleNamespace(train=lambda *run, **more: JobEnded(outcome="finished", text="Done."))
    page = open_tab(TrainTab, PageContext(host, engine, session))
    fail(session, host)
    first, *_, last = page.steps("start", data=["story.txt"], name="new")
    assert first["run"] == "" and last.keys() == {"answer"}
    session.latest("training").log.wait_closed()
    assert session.latest("training").end.text == "Done."


@pytest.mark.long
def test_a_newer_action_removes_a_failed_run_but_not_one_that_is_going_on(fresh, host, session):
    finish = threading.Event()
    work = lambda job: finish.wait(60) and JobEnded(outcome="failed", text="The disk is full.")  # noqa: E731
    job = session.train("night", host, work)
    assert all("run" not in fresh.steps(action)[0] for action in ("check", "start"))
    finish.set()
    job.log.wait_closed()
    for action in ("check", "start"):
        first = fresh.steps(action)[0]
        assert first["run"] == first["samples"] == first["curves"] == ""
        assert first["more-curves"]["visible"] is False and "run-resume" not in first


def test_a_page_holds_one_stream_with_few_outputs(page):
    """Gradio runs few streams, and makes each output anew for every update, on the processor that trains."""
    opened = [each for each in page.blocks.fns.values() if {"load", "then"} & {event for _, event in each.targets}]
    (follow,), (controls,) = page.handlers("again"), page.handlers("version", "change")
    (stream,) = [each for each in opened if inspect.isasyncgenfunction(each.fn)]
    assert stream.outputs == follow.outputs and len(follow.outputs) <= 7
    assert page.named["version"] in follow.outputs and page.named["start"] in controls.outputs


@pytest.mark.long
def test_the_same_failure_once_more_is_shown_once_more(fresh, host, session):
    """Gradio sends only what differs from the last update, and Start has emptied the panel since."""

    async def panels():
        shown = []
        fail(session, host)
        async for update in fresh.stream("again"):
            shown += [update["run"]] if "run" in update else []
            if len(shown) == 1:
                fail(session, host)
            if len(shown) == 3:
                break
        return shown

    first, emptied, second = asyncio.run(panels())
    assert "No model." in first and first == second and emptied == ""


def test_a_run_that_failed_in_the_middle_can_be_resumed(tmp_path, session):
    host, resumed = FakeHost(folders=make_folders(tmp_path)), []
    settings = {"name": "night", "data": ["story.txt"], "stop_at_loss": 1.5}
    write_files(host.folders.loras, "night", {**CUT_OFF, "training_parameters.json": settings})
    engine = SimpleNamespace(train=lambda *run, **more: resumed.append(run[0]) or JobEnded(outcome="stopped"))
    page = open_tab(TrainTab, PageContext(host, engine, session))
    fail(session, host)  # before its first step: in the folder is what an earlier run left
    page.until("again")
    assert page.press("version", "change")["run-resume"]["visible"] is False
    fail(session, host, steps=1)
    page.until("again")
    shown = page.press("version", "change")
    assert (shown["run-resume"]["visible"], shown["run-attach"]["visible"]) == (True, False)
    pressed = page.press("run-resume")
    session.latest("training").log.wait_closed()
    assert str(resumed[0].stopping.stop_at_loss) == "1.5" == pressed["stop_at_loss"]["value"]


def test_an_interrupted_run_resumes_with_its_own_settings_and_a_later_one_gets_none_of_them(host, session):
    write_files(host.folders.loras, "night", files_of_run("finished"))
    settings = {"name": "evening", "data": ["story.txt"], "if_exists": "new_name"}
    settings |= {"method": "full", "stop_at_loss": 1.5}
    write_files(host.folders.models, "night", {**CUT_OFF, "training_parameters.json": settings})
    trained, finish = [], threading.Event()
    engine = SimpleNamespace(
        train=lambda *run, **more: trained.append((run[0], more)) or JobEnded(outcome="stopped")
    )
    page = open_tab(TrainTab, PageContext(host, engine, session))
    said = page.press("Looking for interrupted runs", "load")["unfinished-said"]
    assert "night stopped unexpectedly at step 5 (" in said
    page.fill(unfinished_run="night")
    assert page.until("unfinished-throw")["unfinished-throw"].startswith("Delete ")
    assert "Resuming night." in page.press("unfinished-go-on")["unfinished-done"]
    session.latest("training").log.wait_closed()
    session.train("later", host, lambda job: finish.wait(60) and JobEnded(outcome="finished"))
    restored = page.until("Restoring the form", event="load")
    finish.set()
    ((asked, more),) = trained  # in the folder of the run, whatever name its settings have
    assert (asked.what.name, asked.what.if_exists, more) == ("night", "continue", {"resume": "newest"})
    assert asked.lora.whole_model and "1.5" not in str(restored.get("stop_at_loss"))
