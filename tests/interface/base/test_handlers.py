"""Event handlers of the page: each is guarded, and its exceptions become messages."""

from __future__ import annotations

import asyncio
import threading
from functools import partial

import gradio as gr
import pytest
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.base import add_handler, confirm_click, refresh_choices
from training_pro.interface.page import build_page
from training_pro.tests.fakes import make_folders
from training_pro.tests.interface.visit import Visit


def function(error, _inputs):
    raise error


def generator(error, _inputs):
    yield {}
    raise error


async def async_generator(error, _inputs):
    yield {}
    raise error


KINDS = [function, generator, async_generator]
UNEXPECTED = [KeyError("cutoff"), RecursionError("too deep"), MemoryError(), OSError("full")]


def page_with(handler, *, says=True):
    """A page whose button has this handler."""

    def draw():
        button = gr.Button("Go")
        answer, report = gr.HTML("old", elem_id="answer"), gr.Textbox("old", label="report")
        options = {"what": "Check", "clears": {report: ""} if says else {}}
        add_handler(button.click, handler, {report}, [answer, report] if says else [report], **options)

    return Visit(draw)


def test_every_handler_of_the_page_is_guarded_and_every_id_its_own(tmp_path):
    """And Gradio 4.37 refuses an update of anything but the outputs."""
    host = StandaloneHost(make_folders(tmp_path))
    blocks, _ = build_page(host, PeftEngine(), Session())
    ids = [part.elem_id for part in blocks.blocks.values() if part.elem_id]
    assert len(ids) == len(set(ids)) > 100
    handlers = [handler for handler in blocks.fns.values() if handler.fn is not None]
    assert len(handlers) > 60
    for handler in handlers:
        assert handler.fn.what and handler.fn.clears.keys() <= set(handler.outputs), handler.fn.what


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_is_a_message_and_the_traceback_of_an_unexpected_one_is_printed(kind, capsys):
    for error in UNEXPECTED:
        shown = page_with(partial(kind, error)).press("Go")
        assert shown["report"] == "" and "Check failed: " in shown["answer"]
        assert str(error).strip("'") in shown["answer"] and "See the console for details." in shown["answer"]
        printed = capsys.readouterr().err  # not logged: the webui drops the records of all loggers but its own
        assert printed.startswith("Traceback (") and type(error).__name__ in printed
    answer = page_with(partial(kind, SettingsError(["Name: is empty.", "Data: choose some."]))).press("Go")[
        "answer"
    ]
    assert "is empty." in answer and "choose some." in answer and "failed" not in answer
    assert not capsys.readouterr().err


@pytest.mark.long
@pytest.mark.parametrize("kind", KINDS)
def test_an_error_without_a_place_is_a_pop_up_and_those_of_gradio_pass_through(kind):
    with pytest.raises(gr.Error) as raised:
        page_with(partial(kind, KeyError("<b>")), says=False).press("Go")
    assert "Check failed: KeyError:" in raised.value.message
    assert ("<b>" in raised.value.message) == (int(gr.__version__.split(".")[0]) < 5)
    for error in (gr.Error("on purpose"), asyncio.CancelledError()):
        with pytest.raises(type(error)):
            page_with(partial(kind, error)).press("Go")


def test_closing_a_stream_closes_its_handler_silently(capsys):
    closed = []

    async def endless(_inputs):
        try:
            while True:
                yield {}
        finally:
            closed.append("handler")

    async def visit():
        stream = page_with(endless).stream("Go")
        await anext(stream)
        await stream.aclose()

    asyncio.run(visit())
    assert closed == ["handler"] and not capsys.readouterr().err


@pytest.mark.parametrize(("multiselect", "kept"), [(True, []), (False, None)])
def test_a_menu_with_nothing_chosen_is_refreshed(multiselect, kept):
    """Gradio 4.37 sends None for an empty list of choices."""

    def draw():
        keep = (lambda chosen, names: [name for name in chosen if name in names]) if multiselect else None
        menu = gr.Dropdown([], multiselect=multiselect, label="menu")
        refresh_choices(gr.Button("Go").click, menu, lambda: ["a"], **({"keep": keep} if keep else {}))

    updated = Visit(draw).press("Go", menu=None)["menu"]
    assert updated["choices"] in (["a"], [("a", "a")]) and updated["value"] == kept


def test_what_a_second_click_confirms_holds_up_no_other_page():
    threads = []

    def draw():
        act = lambda _: threads.append(threading.current_thread()) or {}  # noqa: E731
        confirm_click(gr.Button("Go"), lambda _: "", act, set(), [])

    Visit(draw).press("Go")
    assert threads and threading.main_thread() not in threads
