"""The Stop button of a tab: enabled only while a job of its kind is running."""

from __future__ import annotations

import asyncio
import time

import gradio as gr
import pytest
from training_pro.core.jobs import JobEnded, Request, Session
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import PageContext, StopButton
from training_pro.interface.train import TrainTab
from training_pro.tests.fakes import FakeHost, make_folders

PATIENCE_SECONDS = 60


def work_until_stopped(outcome):
    def work(job):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not job.control.asked(Request.STOP) and time.monotonic() < deadline:
            time.sleep(0.05)
        return JobEnded(outcome=outcome, text="That was all.")

    return work


@pytest.fixture
def context(tmp_path):
    return PageContext(FakeHost(folders=make_folders(tmp_path)), PeftEngine(), Session())


async def next_kind(panel, stream):
    """The kind of the running job that the page shows after its next update of the controls."""
    while panel._version not in await anext(stream):
        pass
    return panel._draw_controls()[panel.working]


@pytest.mark.parametrize("outcome", ["stopped", "failed"])
def test_it_is_enabled_from_the_start_of_a_job_to_its_end_and_on_a_page_opened_meanwhile(context, outcome):
    with gr.Blocks(), gr.Tab() as parent:
        tab = TrainTab(context)
        tab.draw(parent)
        button = StopButton(context, "answer", "stop")
        button.draw()
    panel = tab._run_panel

    async def kinds_and_messages():
        one_page, kinds = panel._follow(), []
        kinds.append(await next_kind(panel, one_page))
        context.session.start("answer", "Generating text", context.host, work_until_stopped(outcome))
        kinds.append(await next_kind(panel, one_page))
        kinds.append(await next_kind(panel, panel._follow()))
        messages = [message async for message in button.stop()]
        kinds.append(await next_kind(panel, one_page))
        return kinds, messages

    kinds, (stopping, end) = asyncio.run(kinds_and_messages())
    assert [button.update(kind)["interactive"] for kind in kinds] == [False, True, True, False]
    assert button._button.interactive is False and button.update("model")["interactive"] is False
    assert "Stopping." in stopping and "That was all." in end


def test_it_is_disabled_on_a_read_only_page(context):
    context.host.read_only_reason = "Only the owner may train."
    assert StopButton(context, "answer", "stop").update("answer")["interactive"] is False
