"""Unattended runs and their reports, what an older version left, and the example data."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.errors import BusyError
from training_pro.core.jobs import Job, RunPlanned, Stage
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records import queue
from training_pro.records.folder import choose_run_folder, hold_run_lock, inventory
from training_pro.records.report import write_missing_report
from training_pro.settings import files
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.architectures import read_log
from training_pro.tests.engine.watching import at, first, read, stopping_at, texts
from training_pro.tests.records.on_disk import CUT_OFF, write_files


def report_of(place, name="a"):
    return (place.lora(name) / "report.html").read_text(encoding="utf-8")


def fail(job):
    raise ZeroDivisionError("<in the middle>")


def test_one_name_is_trained_once_at_a_time(place):
    """Also across processes, by a lock; nothing is read for a refused run."""
    write_files(place.folders.loras, "night", CUT_OFF)
    job = Job("training", "a test")
    with hold_run_lock("night", place.folders):
        with pytest.raises(BusyError, match="'night' is being trained"):
            place.train(job=job, name="night", if_exists="continue")
        new_name = place.settings(name="night", if_exists="new_name")
        assert choose_run_folder(new_name, place.folders, "").name == "night-2"
    assert len(texts(job, Stage)) == 1
    with hold_run_lock("a", place.folders), pytest.raises(BusyError, match=r"Stop the run first"):
        place.train()
    assert place.train(max_steps=1).outcome == "finished"


def test_a_report_at_the_end(place):
    place.train(sample_every="epoch", sample_prompts=["The <keeper>"], eval_share=0.2, rank=2)
    text = report_of(place)
    assert 'class="finished"' in text and "<h2>Validation</h2>" in text and "training_pro 1" in text
    assert "The &lt;keeper&gt;" in text and "With the LoRA, after step" in text
    assert ">LoRA Rank</td><td>2</td>" in text


def test_a_report_of_a_stopped_run_and_of_the_whole_after_a_resume(place):
    place.train(job=stopping_at(2))
    assert 'class="stopped"' in report_of(place) and "<dd>2 of 4</dd>" in report_of(place)
    place.train(resume="newest")
    before = report_of(place)
    assert 'class="finished"' in before and "step 1: loss" in before
    assert "is finished" in place.train(resume="newest").text
    assert report_of(place) == before


def test_a_report_that_a_kill_prevented_is_written_later_and_none_is_made_up(with_lora):
    report = with_lora.lora() / "report.html"
    report.unlink()
    write_missing_report(report.parent, with_lora.folders)  # as when the run is shown
    assert "finished at step 4 of 4." in report.read_text(encoding="utf-8")
    report.unlink()
    assert with_lora.train(resume="newest").text.startswith("'a' is finished")
    assert "<svg" in report.read_text(encoding="utf-8")
    elsewhere = {"adapter_model.safetensors": "", "training_log.json": {"ended": "finished"}}
    folder = write_files(with_lora.folders.loras, "story", elsewhere)
    write_missing_report(folder, with_lora.folders)
    assert not (folder / "report.html").exists()


def test_a_report_of_a_run_that_fails_and_none_before_its_first_step(place):
    with pytest.raises(ZeroDivisionError):
        place.train(job=at({3: fail}), save_every=2)
    text = report_of(place)
    for part in ('class="failed"', "ZeroDivisionError: &lt;in the middle&gt;", "<dd>3 of 4</dd>"):
        assert part in text
    with pytest.raises(ZeroDivisionError):
        place.train(job=at({4: fail}), resume="newest")
    assert "<dd>4 of 4</dd>" in report_of(place) and "step 1: loss" in report_of(place)
    with pytest.raises(ZeroDivisionError):
        place.train(job=first(RunPlanned, fail), name="b")
    assert not place.lora("b").exists()


WRITTEN = Path(__file__).parents[1] / "fixtures" / "version_1_0_0"
SETTINGS = {"epochs": 2, "dropout": 0.1, "learning_rate": 5e-3, "rank": 2, "targets": "q-v", "eval_share": 0.3}


@pytest.fixture
def older(place):
    """A working folder with everything that the older version left."""
    shutil.copytree(WRITTEN / "loras", place.folders.loras)
    shutil.copy(WRITTEN / "queue.json", place.folders.queue)
    return place


def test_its_runs_queue_and_settings_are_read(older):
    runs = {run.name: (run.status, run.step, run.model) for run in inventory.list_entries(older.folders)}
    assert runs == {
        "crashed": ("cut off", 2, "tiny"),
        "finished": ("finished", 6, "tiny"),
        "stopped": ("stopped", 2, "tiny"),
    }
    loss = inventory.read_entry(older.lora("finished"), older.folders).loss
    assert loss == read(WRITTEN / "loras" / "finished" / "training_log.json")["smoothed_loss"]
    waiting = queue.load(older.folders.queue).waiting
    assert [(run.name, run.model, run.steps) for run in waiting] == [("first", "tiny", 5), ("second", "tiny", 8)]
    assert training_settings(waiting[1].values).steps.epochs == 3
    settings = training_settings(files.load_settings(WRITTEN / "settings.json").values)
    assert (settings.what.name, settings.steps.epochs, settings.learning.schedule) == ("asked", 3, "cosine")


@pytest.mark.parametrize("name", ["stopped", "crashed"])
def test_its_unfinished_runs_are_continued(older, name):
    """To the same LoRA as the older version's uninterrupted run: to rounding, since processors differ."""
    ended = older.train(name=name, if_exists="continue", **SETTINGS)
    assert (ended.outcome, ended.folder) == ("finished", older.lora(name))
    files = (older.lora(run) / "adapter_model.safetensors" for run in (name, "finished"))
    continued, uninterrupted = map(load_file, files)
    assert continued.keys() == uninterrupted.keys()
    assert all(torch.allclose(continued[key], uninterrupted[key], atol=1e-5) for key in continued)


EXAMPLES = Path(__file__).resolve().parents[2] / "examples"
KINDS = sorted(path.name for path in EXAMPLES.iterdir() if path.is_file() and path.suffix != ".md")


@pytest.mark.long
def test_check_says_what_a_run_on_all_examples_does_with_what_is_left_out(place):
    asked = {"data": KINDS, "max_steps": 2, "min_chars": 60, "too_long": "split", "cutoff": 64, "overlap": True}
    asked |= {"rank": 2, "eval_share": 0.1}
    report = json.loads(json.dumps(PeftEngine().check(place.settings(**asked), place.host()).as_json()))
    assert report["problems"] == []
    place.train(**asked)
    log = read_log(place)
    counts = ("examples", "tokens", "trained_tokens", "longest", "cutoff", "steps", "steps_per_epoch")
    for key in (*counts, "sources", "lengths", "kept_aside", "stops"):
        assert log["data"][key] == report[key], key
    assert log["current_steps"] == report["steps"]
    assert sum(source["text"]["left_out"] for source in report["sources"] if source["text"]) > 0
    assert sum(source["rows"]["too_long"] for source in report["sources"] if source["rows"]) > 0
