"""Runs that were cut off, as the page offers them."""

from __future__ import annotations

import queue
from dataclasses import dataclass, field, replace

import gradio as gr
import pytest
from training_pro.core.jobs.events import Ended
from training_pro.core.jobs.session import Session
from training_pro.interface.base.page_context import Joined
from training_pro.interface.train.resume_panel import Unfinished, in_words
from training_pro.records.folder import crashed_runs
from training_pro.tests.fakes import FakeHost, made_folders
from training_pro.tests.records.on_disk import CUT_OFF, made


@dataclass
class Engine:
    """Notes what it is to train."""

    asked: queue.Queue = field(default_factory=queue.Queue)

    def train(self, settings, host, job, *, resume=""):
        self.asked.put((settings.what.name, settings.what.if_exists, resume))
        return Ended(outcome="finished", text="done")


@pytest.fixture
def joined(tmp_path):
    return Joined(FakeHost(folders=made_folders(tmp_path)), Engine(), Session())


@pytest.fixture
def unfinished(joined):
    with gr.Blocks():
        card = Unfinished(joined)
        card.draw()
    return card


@pytest.mark.parametrize("asked_as", ["night", "evening"])
def test_it_goes_on_where_it_lies_whatever_it_was_asked_for_as(joined, unfinished, asked_as):
    asked = {"name": asked_as, "data": ["story.txt"], "if_exists": "new_name"}
    made(joined.host.folders.loras, "night", {**CUT_OFF, "training_parameters.json": asked})
    said, *_ = unfinished._on_click(unfinished._resume, {unfinished._menu: "night"})
    assert "night goes on." in said
    assert joined.engine.asked.get(timeout=10) == ("night", "continue", "newest")


def test_how_many_steps_there_were_to_be_is_only_said_where_it_is_known(joined):
    made(joined.host.folders.loras, "night", CUT_OFF)
    (run,) = crashed_runs.cut_off_runs(joined.host.folders)
    assert "at step 5. It can go on" in in_words(run)
    assert "at step 5 of 8. It can go on" in in_words(replace(run, steps=8))
