"""The buttons that steer a run: what is typed beside them is answered in words, whatever it is."""

from __future__ import annotations

import gradio as gr
import pytest
from training_pro.core.jobs.job import Job
from training_pro.core.jobs.session import Session
from training_pro.interface.base.page_context import Joined
from training_pro.interface.run.run_buttons import RunButtons
from training_pro.tests.fakes import FakeHost, made_folders


@pytest.fixture
def going(tmp_path, monkeypatch):
    """The buttons beside a run that goes on, and that run."""
    session, job = Session(), Job("training", "a test")
    monkeypatch.setattr(session, "latest", lambda kind: job)
    with gr.Blocks():
        buttons = RunButtons(Joined(FakeHost(folders=made_folders(tmp_path)), None, session))
        buttons.draw_more()
    return buttons, job


def typed(buttons, epochs):
    """What Gradio makes of it first, then we."""
    return buttons._extend_run(buttons._epochs.preprocess(epochs))


@pytest.mark.parametrize("epochs", [0, 0.001, -1, None, 1001, 1e9, float("inf"), float("nan")])
def test_epochs_that_cannot_be_added_are_refused_in_words(going, epochs):
    buttons, job = going
    assert "Epochs more: " in typed(buttons, epochs)
    assert job.control.extending == 0


def test_epochs_more_are_added_up(going):
    buttons, job = going
    assert [typed(buttons, 0.05), typed(buttons, 2)] == ["", ""]
    assert job.control.extending == 2.05
