"""Unattended runs: the machine is kept awake, a name is trained once at a time, and each run has a report."""

from __future__ import annotations

from contextlib import contextmanager

import pytest
from training_pro.core.errors import BusyError
from training_pro.core.jobs import Advice, Note, Request, RunPlanned, Stage, Step
from training_pro.records.folder import hold_run_lock
from training_pro.tests.tiny import watched_job


@pytest.mark.parametrize("wanted", [True, False])
def test_the_machine_is_kept_awake_during_a_run(place, monkeypatch, wanted):
    calls = []

    @contextmanager
    def awake(say):
        say("not possible here")
        calls.append("awake")
        try:
            yield
        finally:
            calls.append("let go")

    def watch(job, event):
        if isinstance(event, Step):
            calls.append(event.step)
            raise ZeroDivisionError

    monkeypatch.setattr("training_pro.engine.training.run.prevent_sleep", awake)
    job = watched_job(watch)
    with pytest.raises(ZeroDivisionError):
        place.train(job=job, keep_awake=wanted)
    assert calls == (["awake", 1, "let go"] if wanted else [1])
    assert ("not possible here" in [e.text for e in job.log.since(0) if isinstance(e, Note)]) is wanted


def test_one_name_is_trained_once_at_a_time(place):
    """Also across processes, by a lock; nothing is read for a refused run."""
    job = watched_job(lambda job, event: None)
    with (
        hold_run_lock("a", place.folders),
        pytest.raises(BusyError, match=r"'a' is being trained\. Stop the run first"),
    ):
        place.train(job=job)
    assert [e for e in job.log.since(0) if isinstance(e, Stage)][1:] == []
    assert place.train().outcome == "finished"


def report_of(place, name="a"):
    return (place.lora(name) / "report.html").read_text(encoding="utf-8")


def test_a_report_at_the_end(place):
    place.train(sample_every="epoch", sample_prompts=["The <keeper>"], eval_share=0.2, rank=2)
    text = report_of(place)
    assert 'class="finished"' in text
    assert "The &lt;keeper&gt;" in text
    assert "With the LoRA, after step" in text
    assert "<h2>Validation</h2>" in text
    assert ">LoRA Rank</td><td>2</td>" in text
    assert "training_pro 1" in text


def test_a_report_of_a_stopped_run_and_of_the_whole_after_a_resume(place):
    def stop(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.ask(Request.STOP)

    place.train(job=watched_job(stop))
    assert 'class="stopped"' in report_of(place)
    assert "<dd>2 of 4</dd>" in report_of(place)
    place.train(resume="newest")
    assert 'class="finished"' in report_of(place)
    assert "step 1: loss" in report_of(place)
    before = report_of(place)
    assert "is finished" in place.train(resume="newest").text
    assert report_of(place) == before


def test_a_report_of_a_run_that_fails_and_none_before_its_first_step(place):
    def fail_at(step):
        def watch(job, event):
            if isinstance(event, Step if step else RunPlanned) and getattr(event, "step", 0) == step:
                raise ZeroDivisionError("<in the middle>")

        return watched_job(watch)

    with pytest.raises(ZeroDivisionError):
        place.train(job=fail_at(3), save_every=2)
    text = report_of(place)
    assert 'class="failed"' in text
    assert "ZeroDivisionError: &lt;in the middle&gt;" in text
    assert "<dd>3 of 4</dd>" in text
    with pytest.raises(ZeroDivisionError):
        place.train(job=fail_at(4), resume="newest")
    assert "<dd>4 of 4</dd>" in report_of(place)
    assert "step 1: loss" in report_of(place)
    with pytest.raises(ZeroDivisionError):
        place.train(job=fail_at(0), name="b")
    assert not place.lora("b").exists()


def test_no_report_of_a_discarded_run(place):
    def throw(job, event):
        if isinstance(event, Step) and event.step == 2:
            job.control.ask(Request.DISCARD)

    place.train(job=watched_job(throw))
    assert not place.lora().exists()


def test_a_failing_report_does_not_fail_the_run(place, monkeypatch):
    def broken(story):
        raise KeyError("nobody thought of it")

    monkeypatch.setattr("training_pro.engine.training.html_report.render_report", broken)
    job = watched_job(lambda job, event: None)
    assert place.train(job=job).outcome == "finished"
    advice = [e.text for e in job.log.since(0) if isinstance(e, Advice)]
    assert "report.html could not be written: 'nobody thought of it'" in advice
    assert not (place.lora() / "report.html").exists()
