"""The panel for crashed runs."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field, replace

import gradio as gr
import pytest
from training_pro.core.jobs import JobEnded, Session
from training_pro.interface.base import Form, PageContext
from training_pro.interface.train.resume_panel import ResumePanel, describe_crashed_run
from training_pro.records.folder import crashed_runs
from training_pro.tests.fakes import FakeHost, make_folders
from training_pro.tests.records.on_disk import CUT_OFF, write_files


@dataclass
class Engine:
    """Records the requested runs."""

    requests: queue.Queue = field(default_factory=queue.Queue)

    def train(self, settings, host, job, *, resume=""):
        self.requests.put((settings.what.name, settings.what.if_exists, resume))
        return JobEnded(outcome="finished", text="done")


@pytest.fixture
def context(tmp_path):
    return PageContext(FakeHost(folders=make_folders(tmp_path)), Engine(), Session())


@pytest.fixture
def panel(context):
    with gr.Blocks():
        panel = ResumePanel(context, Form())
        panel.draw()
    return panel


@pytest.mark.parametrize("name_in_settings", ["night", "evening"])
def test_a_run_resumes_in_its_folder_whatever_name_its_settings_have(context, panel, name_in_settings):
    settings = {"name": name_in_settings, "data": ["story.txt"], "if_exists": "new_name"}
    write_files(context.host.folders.loras, "night", {**CUT_OFF, "training_parameters.json": settings})
    answer = panel._on_click(panel._resume, {panel._menu: "night"})
    assert "Resuming night." in answer[panel.message]
    assert context.engine.requests.get(timeout=10) == ("night", "continue", "newest")


def test_the_planned_steps_are_only_shown_if_they_are_known(context):
    write_files(context.host.folders.loras, "night", CUT_OFF)
    (run,) = crashed_runs.find_crashed_runs(context.host.folders)
    assert "at step 5 (" in describe_crashed_run(run)
    assert "at step 5 of 8 (" in describe_crashed_run(replace(run, steps=8))
