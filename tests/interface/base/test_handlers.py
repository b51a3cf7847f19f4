"""Event handlers of the page: none is registered without its guard, and what one raises becomes a sentence."""

from __future__ import annotations

import asyncio
import inspect
import logging
from functools import partial

import gradio as gr
import pytest
from training_pro.core.errors import DataError, SettingsError, TrainingProError
from training_pro.core.jobs.session import Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import LOADINGS, StandaloneHost
from training_pro.interface.base.handlers import Failing, guarded, handle, is_guarded
from training_pro.interface.page.page import build_page
from training_pro.tests.fakes import made_folders

UNFORESEEN = [
    KeyError("cutoff"),
    ValueError("no number"),
    RecursionError("too deep"),
    MemoryError(),
    OSError("full"),
]
OURS = [DataError("a.txt: cannot be read."), SettingsError(["Name: is empty.", "Data: choose some."])]


def function(error, _given):
    raise error


def generator(error, _given):
    yield {"answer": "begun"}
    raise error


async def coroutine(error, _given):
    raise error


async def async_generator(error, _given):
    yield {"answer": "begun"}
    raise error


KINDS = [function, generator, coroutine, async_generator]


def outcome(handler, *given):
    """The last that a handler of any kind gives."""
    made = handler(*given)
    if inspect.isgenerator(made):
        return list(made)[-1]
    if inspect.iscoroutine(made):
        return asyncio.run(made)
    if inspect.isasyncgen(made):
        return asyncio.run(_last(made))
    return made


async def _last(stream):
    return [update async for update in stream][-1]


@pytest.fixture(scope="module")
def built(tmp_path_factory):
    """The whole page of our own, which holds the tab of the webui and everything beside it."""
    host = StandaloneHost(made_folders(tmp_path_factory.mktemp("page")))
    return build_page(host, PeftEngine(), Session(), loadings=LOADINGS, first_look=True)[0]


def test_every_handler_of_the_page_is_guarded(built):
    handlers = [block.fn for block in built.fns.values() if block.fn is not None]
    assert len(handlers) > 60
    assert [handler for handler in handlers if not is_guarded(handler)] == []


def test_what_a_handler_says_and_clears_is_among_its_outputs(built):
    """Gradio 4.37 refuses an update of anything else."""
    for block in built.fns.values():
        if block.fn is not None:
            failing = block.fn.failing
            spoken = {failing.says, *failing.clears} - {None}
            assert spoken <= set(block.outputs), failing.what
            assert failing.what


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", UNFORESEEN, ids=lambda error: type(error).__name__)
def test_an_unforeseen_error_is_a_sentence_and_its_traceback_in_the_console(kind, error, caplog):
    handler = guarded(partial(kind, error), Failing("Check", "answer", {"report": "", "table": None}))
    with caplog.at_level(logging.ERROR, "training_pro"):
        updates = outcome(handler, {})
    assert updates == {"answer": updates["answer"], "report": "", "table": None}
    assert "Check failed: " in updates["answer"] and "The console has the details." in updates["answer"]
    assert str(error).strip("'") in updates["answer"].replace("&#x27;", "'")
    (record,) = caplog.records
    assert record.exc_info[1] is error and record.exc_info[2] is not None


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("error", OURS, ids=lambda error: type(error).__name__)
def test_an_error_of_ours_is_its_own_sentence_without_a_traceback(kind, error, caplog):
    handler = guarded(partial(kind, error), Failing("Check", "answer"))
    answer = outcome(handler, {})["answer"]
    assert "failed" not in answer and "The console" not in answer
    assert all(line.partition(": ")[2] in answer for line in str(error).splitlines())
    assert not caplog.records


@pytest.mark.parametrize("kind", KINDS)
def test_where_no_part_of_the_page_can_say_it_a_message_does(kind):
    with pytest.raises(gr.Error) as raised:
        outcome(guarded(partial(kind, KeyError("<b>")), Failing("Refresh")), {})
    assert "Refresh failed: KeyError:" in raised.value.message
    assert ("<b>" in raised.value.message) == (int(gr.__version__.split(".")[0]) < 5)


def test_an_error_without_words_is_told_by_its_kind():
    (answer,) = outcome(guarded(partial(function, TrainingProError()), Failing("Check", "answer")), {}).values()
    assert "Check failed: TrainingProError. The console has the details." in answer


@pytest.mark.parametrize("kind", KINDS)
@pytest.mark.parametrize("raised", [gr.Error("on purpose"), asyncio.CancelledError(), KeyboardInterrupt()])
def test_what_is_raised_on_purpose_goes_through(kind, raised, caplog):
    with pytest.raises(type(raised)):
        outcome(guarded(partial(kind, raised), Failing("Check", "answer")), {})
    assert not caplog.records


@pytest.mark.parametrize("kind", [generator, async_generator])
def test_a_stream_that_is_closed_says_nothing_and_closes_what_it_guards(kind, caplog):
    closed = []

    def sync(_given):
        try:
            yield 1
            yield 2
        finally:
            closed.append("sync")

    async def unsync(_given):
        try:
            yield 1
            yield 2
        finally:
            closed.append("unsync")

    async def end(stream):
        assert await anext(stream) == 1
        await stream.aclose()

    if kind is generator:
        stream = guarded(sync, Failing("Check", "answer"))({})
        assert next(stream) == 1
        stream.close()
    else:
        asyncio.run(end(guarded(unsync, Failing("Check", "answer"))({})))
    assert len(closed) == 1 and not caplog.records


@pytest.mark.parametrize("kind", KINDS)
def test_gradio_sees_the_kind_and_the_parameters_of_the_handler(kind):
    handler = guarded(partial(kind, KeyError()), Failing("Check"))
    assert inspect.isgeneratorfunction(handler) == (kind is generator)
    assert inspect.isasyncgenfunction(handler) == (kind is async_generator)
    assert inspect.iscoroutinefunction(handler) == (kind is coroutine)
    assert list(inspect.signature(handler).parameters) == ["_given"]


def test_a_failing_handler_on_a_page_leaves_nothing_of_before():
    """By Gradio's own road, from the inputs to what the browser is sent."""
    with gr.Blocks() as blocks:
        button, said, report = gr.Button(), gr.HTML("old"), gr.HTML("old report")

        def failing(_given):
            yield {said: "begun"}
            raise ZeroDivisionError("by nothing")

        told = {"what": "Check", "says": said, "clears": {report: ""}}
        handle(button.click, failing, {button}, [said, report], **told)
    (block,) = [block for block in blocks.fns.values() if block.fn is not None]
    *_, last = block.fn({})
    sent = asyncio.run(postprocessed(blocks, block, last))
    assert "Check failed: ZeroDivisionError: by nothing." in str(sent[0]) and "old" not in str(sent)


async def postprocessed(blocks, block, predictions):
    return await blocks.postprocess_data(block, predictions, None)
