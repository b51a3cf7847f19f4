"""The Train tab: existing LoRAs of the typed name, uploads, and the question before Start."""

from __future__ import annotations

import asyncio
import inspect
import re
import threading
from html import unescape
from types import SimpleNamespace

import gradio as gr
import pytest
from training_pro.core.jobs import JobEnded, Note, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import PageContext, stream_pace
from training_pro.interface.run.run_panel import ShownRun
from training_pro.interface.train import TrainTab
from training_pro.settings import presets
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import CUT_OFF, lora, write_files

MODEL = {"model.safetensors": "weights"}


def files_of_run(ended):
    """The files of a run with this end."""
    return {**lora(), "training_log.json": {"ended": ended}}


@pytest.fixture(scope="module")
def tab(tmp_path_factory):
    host = FakeHost(folders=make_folders(tmp_path_factory.mktemp("page")))
    with gr.Blocks(), gr.Tab() as parent:
        tab = TrainTab(PageContext(host, PeftEngine(), Session()))
        tab.draw(parent)
    return tab


def root(component):
    """The Blocks that a component belongs to."""
    return component if component.parent is None else root(component.parent)


def existing_name(tab, name, method):
    """The description of an existing name, and the labels of its buttons."""
    parts = tab._form.components
    html = tab._describe_name({parts["name"]: name, parts["if_exists"]: "ask", parts["method"]: method})
    words = re.search(r"exists: ([^.]*)\.", html)
    return (words[1] if words else ""), re.findall(r">([^<]+)</", html.partition(". ")[2].replace("</p>", ""))


@pytest.mark.parametrize(
    ("files", "words", "going_on"),
    [
        (files_of_run("finished"), "a finished LoRA", "Continue training it"),
        (
            {**lora(), "training_log.json": {"ended": "stopped"}},
            "the LoRA of a run that was stopped",
            "Resume it",
        ),
        (
            {**lora(), "training_log.json": {"ended": "failed"}},
            "the LoRA of a run that failed",
            "Resume it",
        ),
        (CUT_OFF, "a run that was interrupted by a crash", "Resume it"),
        (lora(), "a LoRA made elsewhere", "Continue training it"),
    ],
    ids=["finished", "stopped", "failed", "cut off", "made elsewhere"],
)
def test_a_lora_in_every_state(tab, request, files, words, going_on):
    name = request.node.callspec.id.replace(" ", "-")
    write_files(tab._context.host.folders.loras, name, files)
    buttons = [going_on, "Replace it (a backup is kept)", f"Use a new name: {name}-2"]
    assert existing_name(tab, name, "lora") == (words, buttons)
    assert existing_name(tab, name, "full") == ("", [])


def test_a_full_model_is_looked_up_in_the_models_folder(tab):
    write_files(tab._context.host.folders.models, "whole", MODEL)
    write_files(
        tab._context.host.folders.models, "whole-failed", {**MODEL, "training_log.json": {"ended": "failed"}}
    )
    kept = "Replace it (a backup is kept)"
    assert existing_name(tab, "whole", "full") == ("a model made elsewhere", [kept, "Use a new name: whole-2"])
    buttons = ["Resume it", kept, "Use a new name: whole-failed-2"]
    assert existing_name(tab, "whole-failed", "full") == ("the model of a run that failed", buttons)
    assert existing_name(tab, "whole", "lora") == ("", [])


@pytest.mark.parametrize("name", ["", "  ", "nowhere", None])
def test_a_free_name_has_no_description(tab, name):
    assert existing_name(tab, name, "lora") == ("", [])


def test_the_data_preview_does_not_replace_the_message_of_add_files(tab, tmp_path):
    """The preview is updated whenever the data change: in the same place it would hide a refusal."""
    (tmp_path / "photo.jpg").write_text("x")
    data = tab._form.components["data"]
    menu, message = tab._on_upload({tab._add_button: [str(tmp_path / "photo.jpg")], data: ["story.txt"]})
    assert menu["value"] == ["story.txt"] and "photo.jpg can't be used as a dataset" in unescape(message)
    writes = {fn.targets[0] for fn in root(tab._add_message).fns.values() if tab._add_message in fn.outputs}
    assert (tab._add_button._id, "upload") in writes and (data._id, "change") not in writes


def test_the_suggested_name_follows_the_dataset_and_a_typed_one_stays(tab):
    parts = tab._form.components

    def suggest(data, name, before):
        return tab._suggest_name({parts["data"]: data, parts["name"]: name, tab._data_before: before})

    first, if_exists, before = suggest(["story.txt"], "", "")
    assert first.startswith("story-") and (if_exists, before) == ("ask", "story.txt")
    second, if_exists, before = suggest(["chats.jsonl"], first, before)
    assert second.startswith("chats-") and (if_exists, before) == ("ask", "chats.jsonl")
    unchanged = gr.update()
    assert suggest(["story.txt"], "mine", before) == (unchanged, unchanged, "story.txt")
    assert suggest(["story.txt"], "story-of-last-time", "")[0] == unchanged, "a restored form keeps its name"


def test_a_choice_for_one_lora_is_not_remembered_for_the_next_visit(tab):
    parts, folders = tab._form.components, tab._context.host.folders
    presets.save_form(folders.form, {"name": "story", "if_exists": "replace", "rank": 8})
    restored = tab._restore_form()
    assert restored[parts["rank"]]["value"] == 8 and parts["if_exists"] not in restored


def test_a_half_typed_setting_is_not_told_by_the_preview_of_the_data(tab):
    inputs = {part: part.value for part in tab._form.components.values()}
    inputs |= {tab._form.components["data"]: ["story.txt"], tab._form.components["learning_rate"]: "abc"}
    assert "abc" not in tab._preview_data(inputs)[0]


def test_start_asks_about_an_existing_lora_before_the_run(tab):
    panel, parts = tab._run_panel, tab._form.components
    write_files(tab._context.host.folders.loras, "asked", files_of_run("finished"))
    inputs = {part: part.value for part in parts.values()}
    inputs |= {parts["name"]: "asked", parts["data"]: ["story.txt"], parts["if_exists"]: "ask"}

    _, refusal = updates_of_start(panel, inputs)
    assert "&#39;asked&#39; already exists: a finished LoRA. Under " in refusal[panel._response]
    assert "Continue training it" in refusal[panel._response] and "press Start again" in refusal[panel._response]
    assert tab._context.session.latest("training") is None


def test_the_end_of_start_leaves_the_panel_to_the_run(tab, monkeypatch):
    """Gradio sends the last update of a stream again when it ends, perhaps after the run has failed."""
    panel, parts, context = tab._run_panel, tab._form.components, tab._context
    context.session.train("a", context.host, lambda *use: 1 / 0).log.wait_closed()
    inputs = {part: part.value for part in parts.values()} | {parts["data"]: ["story.txt"], parts["name"]: "a"}
    started = []
    monkeypatch.setattr(context.session, "train", lambda *run: started.append(run))

    first, *_, last = updates_of_start(panel, inputs)
    assert started and panel._panel in first and [*last] == [panel._response]


def updates_of_start(panel, inputs):
    async def collect():
        return [updates async for updates in panel._on_start(inputs)]

    return asyncio.run(collect())


def draw_tab(host, session):
    """A Train tab, and the values of its form as it is drawn."""
    with gr.Blocks(), gr.Tab() as parent:
        tab = TrainTab(PageContext(host, PeftEngine(), session))
        tab.draw(parent)
    return tab._run_panel, tab._form.components


def sentence_and_choices(html):
    """What an answer says of the name of the run, and its buttons for what to do with it."""
    sentence = re.search(r"[^>]*already exists.*?</", re.sub(r"</?a\b[^>]*>", "", html))
    return sentence and sentence[0], re.findall(r'{"if_exists[^>]*>([^<]+)<', unescape(html))


@pytest.mark.parametrize(
    ("ended", "if_exists", "ready"),
    [
        ("finished", "ask", False),
        ("finished", "new_name", True),
        ("stopped", "replace", True),
        (None, "ask", True),
    ],
)
def test_check_says_what_start_says_of_the_name(place, ended, if_exists, ready):
    if ended:
        write_files(place.folders.loras, "a", files_of_run(ended))
    panel, parts = draw_tab(place.host(), Session())
    values = place.settings(if_exists=if_exists).values()
    inputs = {part: values[key] for key, part in parts.items()}
    *_, report = panel._on_check(inputs)
    assert ("Check: not ready" in report[panel._response]) != ready
    if ready:
        assert sentence_and_choices(report[panel._response]) == (None, [])
    else:
        *_, refusal = updates_of_start(panel, inputs)
        sentence, choices = sentence_and_choices(report[panel._response])
        assert sentence_and_choices(refusal[panel._response]) == (sentence, choices)
        assert "'a' already exists: a finished LoRA." in unescape(sentence) and len(choices) == 3


def test_a_page_holds_one_stream_on_this_tab(place):
    """Gradio runs a limited number of streams, and a page keeps its own for as long as it is open."""
    with gr.Blocks() as page, gr.Tab() as parent:
        TrainTab(PageContext(place.host(), PeftEngine(), Session())).draw(parent)
    at_load = [each.fn for each in page.fns.values() if any(event == "load" for _, event in each.targets)]
    assert [inspect.isasyncgenfunction(function) for function in at_load].count(True) == 1


def test_the_stream_has_few_outputs_and_an_event_draws_the_others(place):
    """Gradio makes each output of a stream anew for every update, on the processor that trains."""
    session = Session()
    panel, _ = draw_tab(place.host(), session)
    follow, controls = (
        next(fn for fn in root(panel._panel).fns.values() if (part._id, event) in fn.targets)
        for part, event in ((panel._follow_button, "click"), (panel._version, "change"))
    )
    assert len({*follow.outputs} - {panel._shown}) <= 6 and panel._version in follow.outputs
    assert set(panel._draw_controls()) == set(controls.outputs)
    run_parts = {*follow.outputs, *controls.outputs}
    assert {*panel._without_run()} <= run_parts and panel._start_button in run_parts

    async def versions(stream):
        while panel._version not in (updates := await anext(stream)):
            pass
        return updates[panel._version]

    async def follow_two_pages():
        pages = panel._follow(), panel._follow()
        idle = [await versions(page) for page in pages]
        finish = threading.Event()
        job = session.train("night", place.host(), lambda job: finish.wait(60) and JobEnded(outcome="finished"))
        running = [await versions(page) for page in pages]
        assert panel._draw_controls()[panel._start_button]["interactive"] is False
        finish.set()
        job.log.wait_closed()
        ended = [await versions(page) for page in pages]
        assert panel._draw_controls()[panel._start_button]["interactive"] is True
        assert panel._draw_controls()[panel.ended] == "Training 'night'"
        return idle, running, ended

    seen = asyncio.run(follow_two_pages())
    assert all(first == second for first, second in seen) and len({first for first, _ in seen}) == 3


def test_many_pages_are_refreshed_less_often_and_only_while_they_are_open(place, monkeypatch):
    panel, _ = draw_tab(place.host(), Session())
    pace = panel._pace

    async def open_pages(count):
        pages = [panel._follow() for _ in range(count)]
        for page in pages:
            await anext(page)
        streams = pace.streams
        for page in pages:
            await page.aclose()
        return streams, pace.streams

    assert asyncio.run(open_pages(8)) == (8, 0)
    monkeypatch.setattr(stream_pace, "time", SimpleNamespace(monotonic=lambda: 0.0))
    seconds = []
    for pace.streams in (1, 30, 10_000):
        seconds.append(pace.seconds())
    assert seconds == [0.5, 15, 30]


def test_pages_that_look_at_the_same_moment_share_a_drawing(place, monkeypatch):
    """The run makes steps meanwhile, and to draw its curve for each page took more time than all else."""
    session = Session()
    panel, _ = draw_tab(place.host(), session)
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(stream_pace, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def train(job):
        for number in range(3):
            job.log.append(Note(text=f"Step {number}"))
            asyncio.run(panel._look(ShownRun()))
            drawn.append(panel._view.position)
            clock.now += number
        return JobEnded(outcome="finished", text="Done.")

    drawn = []
    session.train("night", place.host(), train).log.wait_closed()
    assert drawn[0] == drawn[1] < drawn[2]


def test_with_many_pages_each_asks_by_itself_until_they_are_few_again(place, monkeypatch):
    """Gradio 4.37 looks for news in each open stream 20 times a second, which slowed a run down by 16%."""
    panel, _ = draw_tab(place.host(), Session())
    clock = SimpleNamespace(now=100.0)
    monkeypatch.setattr(stream_pace, "time", SimpleNamespace(monotonic=lambda: clock.now))

    def pause_of(update):
        return int(re.search('data-tp-look="([0-9]+)"', update[panel._beat])[1])

    async def last_update(stream):
        return [update async for update in stream][-1]

    async def visit():
        streams = [panel._follow() for _ in range(8)]
        for stream in streams:
            await anext(stream)
        assert panel._pace.streams == 8
        ninth = await last_update(panel._follow())
        assert pause_of(ninth) > 0 and panel._charts in ninth
        again = await panel._look(ninth[panel._shown])
        assert pause_of(again) > 0 and panel._charts not in again, "what has not changed is not sent again"
        assert panel._pace.pages() == 9, "a page counts once"
        clock.now += 60
        assert panel._pace.pages() == 8, "a page that did not come back is closed"
        assert pause_of(await panel._look(again[panel._shown])) > 0
        await streams[0].aclose()
        assert pause_of(await panel._look(again[panel._shown])) == 0, "it follows by a stream again"
        for stream in streams[1:]:
            await stream.aclose()

    asyncio.run(visit())


def test_all_pages_share_one_drawing_of_the_run(place):
    session = Session()
    panel, _ = draw_tab(place.host(), session)
    session.train(
        "night", place.host(), lambda job: JobEnded(outcome="failed", text="No model.")
    ).log.wait_closed()
    assert panel._current_view().html() is panel._current_view().html()


def test_the_same_failure_once_more_is_shown_once_more(place):
    """Gradio sends only what differs from the last update, and Start has emptied the panel since."""
    session = Session()
    panel, _ = draw_tab(place.host(), session)

    def fail():
        job = session.train("night", place.host(), lambda job: JobEnded(outcome="failed", text="No model."))
        job.log.wait_closed()

    async def panels():
        stream, shown = panel._follow(), []
        fail()
        while len(shown) < 3:
            updates = await anext(stream)
            if panel._panel in updates:
                shown.append(updates[panel._panel])
                if len(shown) == 1:
                    fail()
        return shown

    first, emptied, second = asyncio.run(panels())
    assert "No model." in first and first == second and emptied == ""


@pytest.mark.parametrize("action", ["check", "start"])
def test_a_newer_action_removes_a_failed_run_but_not_one_that_is_going_on(place, action):
    session, finish = Session(), threading.Event()
    panel, parts = draw_tab(place.host(), session)
    inputs = {part: part.value for part in parts.values()}  # without a name and a dataset

    def first_updates():
        return next(panel._on_check(inputs)) if action == "check" else updates_of_start(panel, inputs)[0]

    def work(job):
        finish.wait(60)
        return JobEnded(outcome="failed", text="The disk is full.")

    job = session.train("night", place.host(), work)
    assert panel._panel not in first_updates()
    finish.set()
    job.log.wait_closed()
    updates = first_updates()
    assert updates[panel._panel] == updates[panel._samples] == updates[panel._charts] == ""
    assert updates[panel._copy_button]["visible"] is updates[panel._charts_part]["visible"] is False
