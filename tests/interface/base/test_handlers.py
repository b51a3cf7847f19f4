"""Event handlers of the page: each is guarded, and its exceptions become messages."""

from __future__ import annotations

import asyncio
import inspect
from functools import partial
from html import unescape

import gradio as gr
import pytest
from training_pro.core.errors import DataError, SettingsError, TrainingProError
from training_pro.core.jobs import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost
from training_pro.interface.base.handlers import (
    FailureReply,
    add_handler,
    guard_handler,
    is_guarded,
    refresh_choices,
)
from training_pro.interface.page import build_page
from training_pro.tests.fakes import make_folders

UNEXPECTED = [
    KeyError("cutoff"),
    ValueError("no number"),
    RecursionError("too deep"),
    MemoryError(),
    OSError("full"),
]
EXPECTED = [DataError("a.txt: can't be read."), SettingsError(["Name: is empty.", "Data: choose some."])]


def function(error, _inputs):
    raise error


def generator(error, _inputs):
    yield {"answer": "begun"}
    raise error


async def async_generator(error, _inputs):
    yield {"answer": "begun"}
    raise error


async def coroutine(error, _inputs):
    raise error


KINDS = [function, generator, async_generator, coroutine]


def outcome(handler, *args):
    """The last result of a handler of any kind."""
    result = handler(*args)
    if inspect.isgenerator(result):
        return list(result)[-1]
    if inspect.isasyncgen(result):
        return asyncio.run(_last(result))
    return asyncio.run(_awaited(result)) if inspect.isawaitable(result) else result


async def _awaited(result):
    return await result


async def _last(stream):
    return [update async for update in stream][-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The whole standalone page, including the tab of the webui."""
    host = StandaloneHost(make_folders(tmp_path_factory.mktemp("page")))
    return build_page(host, PeftEngine(), Session(), loadings=LOADING_OPTIONS, first_look=True)[0]


def test_every_handler_of_the_page_is_guarded(built):
    handlers = [block.fn for block in built.fns.values() if block.fn is not None]
    assert len(handlers) > 60
    assert [handler for handler in handlers if not is_guarded(handler)] == []


def test_the_outputs_of_an_error_reply_are_outputs_of_the_handler(built):
    """Gradio 4.37 refuses an update of anything else."""
    for block in built.fns.values():
        if block.fn is not None:
            failing = block.fn.failing
            reply_outputs = {failing.says, *failing.clears} - {None}
            assert reply_outputs <= set(block.outputs), failing.what
            assert failing.what


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", UNEXPECTED, ids=lambda error: type(error).__name__)
def test_an_unexpected_error_is_a_message_and_its_traceback_is_printed(kind, error, capsys):
    handler = guard_handler(partial(kind, error), FailureReply("Check", "answer", {"report": "", "table": None}))
    updates = outcome(handler, {})
    assert updates == {"answer": updates["answer"], "report": "", "table": None}
    assert "Check failed: " in updates["answer"] and "See the console for details." in updates["answer"]
    assert str(error).strip("'") in updates["answer"].replace("&#39;", "'")
    printed = capsys.readouterr().err  # not logged: the webui drops the records of all loggers but its own
    assert printed.startswith("Traceback (") and type(error).__name__ in printed


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", EXPECTED, ids=lambda error: type(error).__name__)
def test_an_expected_error_is_its_own_message_without_a_traceback(kind, error, capsys):
    handler = guard_handler(partial(kind, error), FailureReply("Check", "answer"))
    answer = outcome(handler, {})["answer"]
    assert "failed" not in answer and "The console" not in answer
    assert all(line.partition(": ")[2] in unescape(answer) for line in str(error).splitlines())
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_without_an_output_for_it_the_message_is_a_pop_up(kind):
    with pytest.raises(gr.Error) as raised:
        outcome(guard_handler(partial(kind, KeyError("<b>")), FailureReply("Refresh")), {})
    assert "Refresh failed: KeyError:" in raised.value.message
    assert ("<b>" in raised.value.message) == (int(gr.__version__.split(".")[0]) < 5)


def test_an_error_without_text_is_named_by_its_type():
    (answer,) = outcome(
        guard_handler(partial(function, TrainingProError()), FailureReply("Check", "answer")), {}
    ).values()
    assert "Check failed: TrainingProError. See the console for details." in answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raised", [gr.Error("on purpose"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_gradio_errors_and_cancellation_pass_through(kind, raised, capsys):
    with pytest.raises(type(raised)):
        outcome(guard_handler(partial(kind, raised), FailureReply("Check", "answer")), {})
    assert not capsys.readouterr().err


@pytest.mark.parametrize("kind", [generator, async_generator])
def test_closing_a_stream_closes_its_handler_silently(kind, capsys):
    closed = []

    def sync(_inputs):
        try:
            yield 1
            yield 2
        finally:
            closed.append("sync")

    async def unsync(_inputs):
        try:
            yield 1
            yield 2
        finally:
            closed.append("unsync")

    async def end(stream):
        assert await anext(stream) == 1
        await stream.aclose()

    if kind is generator:
        stream = guard_handler(sync, FailureReply("Check", "answer"))({})
        assert next(stream) == 1
        stream.close()
    else:
        asyncio.run(end(guard_handler(unsync, FailureReply("Check", "answer"))({})))
    assert len(closed) == 1 and not capsys.readouterr().err


@pytest.mark.parametrize("kind", KINDS)
def test_a_guarded_handler_keeps_its_kind_and_signature(kind):
    handler = guard_handler(partial(kind, KeyError()), FailureReply("Check"))
    assert inspect.isgeneratorfunction(handler) == (kind is generator)
    assert inspect.isasyncgenfunction(handler) == (kind is async_generator)
    assert inspect.iscoroutinefunction(handler) == (kind is coroutine)
    assert list(inspect.signature(handler).parameters) == ["_inputs"]


def test_a_failing_handler_clears_old_outputs():
    """Through Gradio's own processing, from the inputs to the data for the browser."""
    with gr.Blocks() as blocks:
        button, message, report = gr.Button(), gr.HTML("old"), gr.HTML("old report")

        def failing(_inputs):
            yield {message: "begun"}
            raise ZeroDivisionError("by nothing")

        options = {"what": "Check", "says": message, "clears": {report: ""}}
        add_handler(button.click, failing, {button}, [message, report], **options)
    (block,) = [block for block in blocks.fns.values() if block.fn is not None]
    *_, last = block.fn({})
    sent = asyncio.run(postprocessed(blocks, block, last))
    assert "Check failed: ZeroDivisionError: by nothing." in str(sent[0]) and "old" not in str(sent)


async def postprocessed(blocks, block, predictions):
    return await blocks.postprocess_data(block, predictions, None)


@pytest.mark.parametrize(("multiselect", "kept"), [(True, []), (False, None)])
def test_a_menu_with_nothing_chosen_is_refreshed(multiselect, kept):
    """Gradio 4.37 sends None for an empty list of choices."""
    with gr.Blocks() as blocks:
        menu = gr.Dropdown([], multiselect=multiselect)
        keep = (lambda chosen, names: [name for name in chosen if name in names]) if multiselect else None
        refresh_choices(gr.Button().click, menu, lambda: ["a"], **({"keep": keep} if keep else {}))
    refill = list(blocks.fns.values())[-1].fn
    updated = refill(None)
    assert updated["choices"] in (["a"], [("a", "a")]) and updated["value"] == kept
