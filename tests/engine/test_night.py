"""Unattended runs: a name is trained once at a time, each run has a report, and it says what was there before."""

from __future__ import annotations

import pytest
from training_pro.core.errors import BusyError, SavingError
from training_pro.core.jobs import Advice, Job, RunPlanned, Stage
from training_pro.records.folder import choose_run_folder, hold_run_lock
from training_pro.records.report import write_missing_report
from training_pro.tests.engine.watching import at, first, stopping_at, texts
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
    for part in (
        *('class="finished"', "The &lt;keeper&gt;", "With the LoRA, after step", "<h2>Validation</h2>"),
        *(">LoRA Rank</td><td>2</td>", "training_pro 1"),
    ):
        assert part in text


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


def test_a_file_that_is_gone_is_not_replaced_by_the_example_of_its_name_in_silence(place):
    place.train(job=stopping_at(2))
    (place.folders.datasets / "story.txt").unlink()
    job = Job("training", "a test")
    with pytest.raises(SavingError, match="can't resume"):
        place.train(job=job, resume="newest")
    said = f"story.txt is not in {place.folders.datasets}, so the included example with that name is used."
    assert said in texts(job, Advice)
