"""The buttons that control a run: any typed number of epochs is accepted or refused with a message."""

from __future__ import annotations

import gradio as gr
import pytest
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import Job, Request, Session
from training_pro.interface.base import PageContext
from training_pro.interface.run import RunView
from training_pro.interface.run.run_buttons import RunButtons
from training_pro.tests.fakes import FakeHost, make_folders


@pytest.fixture
def running(tmp_path, monkeypatch):
    """The buttons of a running job, and the job."""
    session, job = Session(), Job("training", "a test")
    monkeypatch.setattr(session, "latest", lambda kind: job)
    with gr.Blocks():
        buttons = RunButtons(PageContext(FakeHost(folders=make_folders(tmp_path)), None, session))
        buttons.draw_more()
    return buttons, job


def extend(buttons, epochs):
    """The typed value goes through Gradio first."""
    return buttons._extend_run(buttons._epochs.preprocess(epochs))


@pytest.mark.parametrize("epochs", [0, 0.001, -1, None, 1001, 1e9, float("inf"), float("nan")])
def test_invalid_numbers_of_epochs_are_refused_with_a_message(running, epochs):
    buttons, job = running
    with pytest.raises(SettingsError, match="More epochs: "):
        extend(buttons, epochs)
    assert job.control.pending == frozenset()


def test_extra_epochs_add_up(running):
    buttons, job = running
    assert [extend(buttons, 0.05), extend(buttons, 2)] == ["", ""]
    assert job.control.take_epochs() == 2.05


def test_a_run_that_is_stopping_can_only_be_discarded(tmp_path):
    job = Job("training", "a test")
    with gr.Blocks():
        buttons = RunButtons(PageContext(FakeHost(folders=make_folders(tmp_path)), None, Session()))
        for draw in (buttons.draw, buttons.draw_more, buttons.draw_live):
            draw()

    def enabled():
        updates = buttons.button_updates(RunView(job))
        return [part.value for part in buttons.components if updates[part].get("interactive")]

    assert len(enabled()) > 6
    job.control.ask(Request.STOP)
    assert enabled() == ["Stop and discard"]
    job.control.ask(Request.DISCARD)
    assert enabled() == []
