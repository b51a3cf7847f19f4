"""What a run says of what was there before it: a removed file, another run, and what a kill left out."""

from __future__ import annotations

import re

import gradio as gr
import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.core.jobs import Advice, Request, Session, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.base import Form, PageContext
from training_pro.interface.tabs import runs_tab
from training_pro.records.folder import choose_run_folder, hold_run_lock
from training_pro.records.report import write_missing_report
from training_pro.tests.records.on_disk import CUT_OFF, write_files
from training_pro.tests.tiny import watched_job


def stopping_at(step):
    def watch(job, event):
        if isinstance(event, Step) and event.step == step:
            job.control.ask(Request.STOP)

    return watched_job(watch)


def test_a_file_that_is_gone_is_not_replaced_by_the_example_of_its_name_in_silence(place):
    place.train(job=stopping_at(2))
    (place.folders.datasets / "story.txt").unlink()
    job = watched_job(lambda job, event: None)
    with pytest.raises(SavingError, match="can't resume"):
        place.train(job=job, resume="newest")
    said = [event.text for event in job.log.since(0) if isinstance(event, Advice)]
    assert f"story.txt is not in {place.folders.datasets}, so the included example with that name is used." in said


def test_a_second_start_of_a_running_name_is_told_that_it_runs(place):
    write_files(place.folders.loras, "night", CUT_OFF)
    settings = place.settings(name="night")
    with hold_run_lock("night", place.folders), pytest.raises(BusyError, match="'night' is being trained"):
        choose_run_folder(settings, place.folders, "")
    new_name = place.settings(name="night", if_exists="new_name")
    with hold_run_lock("night", place.folders):
        assert choose_run_folder(new_name, place.folders, "").name == "night-2"


def test_a_report_that_a_kill_prevented_is_written_when_the_finished_run_is_resumed(with_lora):
    report = with_lora.lora() / "report.html"
    report.unlink()
    assert with_lora.train(resume="newest").text.startswith("'a' is finished")
    written = report.read_text(encoding="utf-8")
    assert re.search(r"a(&#39;|') finished at step \d+ of \d+\.", written) and "<svg" in written


def test_a_report_that_a_kill_prevented_is_written_when_the_run_is_shown(with_lora):
    (with_lora.lora() / "report.html").unlink()
    with gr.Blocks(), gr.Tab() as parent:
        tab = runs_tab.RunsTab(PageContext(with_lora.host(), PeftEngine(), Session()), Form())
        tab.draw(parent)
    assert "The whole report" in tab._show_run("a")[0]
    assert (with_lora.lora() / "report.html").is_file()


def test_no_report_is_made_up_for_what_was_made_elsewhere(place):
    files = {"adapter_model.safetensors": "", "training_log.json": {"ended": "finished"}}
    folder = write_files(place.folders.loras, "story", files)
    write_missing_report(folder, place.folders)
    assert not (folder / "report.html").exists()
