"""An exam is asked before, during and after a run, and of a saved LoRA."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import DataError
from training_pro.core.findings import texts
from training_pro.core.jobs import ExamAsked, Job, Request, SectionScore, Stage, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.interface.run import RunView
from training_pro.records.folder import REPORT, run_files
from training_pro.tests.engine.watching import asking, at, events_of, stopping_at
from training_pro.tests.tiny import watched_job

QUESTIONS = [("Who rang the bell?", "Maren"), ("What color was the coat?", "blue"), ("How many geese?", "seven")]


def test_a_run_is_asked_its_exam_before_and_at_the_end_and_shows_both(place):
    # Trained until it knows three answers by heart, so that right ones are seen.
    rows = [{"instruction": q, "output": a, "origin": {"section": f"<{a[0]}>"}} for q, a in QUESTIONS]
    place.write("q.jsonl", "".join(json.dumps(row) + "\n" for row in rows))
    place.write("exam.jsonl", "".join(json.dumps(row) + "\n" for row in rows[:2]))
    values = {"data": ["q.jsonl"], "exam": ["exam.jsonl"], "epochs": 40, "rank": 64, "train_head": True}
    report = PeftEngine().check(place.settings(**values), place.host())
    assert any(
        "2 rows of the training data ask one of its questions" in text for text in texts(report.findings, "advice")
    )
    job = Job("training", "a test")
    place.train(job=job, **values, batch_size=1, schedule="constant", warmup_steps=0)
    first, *_, last = events_of(job, ExamAsked)
    assert (first.step, first.right, last.step) == (0, 0, 120)
    assert last.sections == (SectionScore("<M>", 1, 1), SectionScore("<b>", 1, 1))
    recorded = run_files.read_exams(place.lora())
    assert [recorded[0], recorded[-1]] == [first, last]
    view = RunView(job)
    view.catch_up()
    for page in (view.html(), (place.lora() / REPORT).read_text("utf-8")):
        assert (
            "2 of 2 questions answered correctly" in page and "&lt;M&gt;: 0 of 1 right before, 1 of 1 now" in page
        )

    job = Job("evidence", "a test")
    weights, ended = place.weights(), PeftEngine().exam("exam.jsonl", "a", place.host(), job)
    assert [event.sections for event in events_of(job, ExamAsked)] == [first.sections, last.sections]
    assert run_files.read_exams(place.lora())[-2:] == events_of(job, ExamAsked) and place.weights() == weights
    assert "0 without a LoRA, 2 with the LoRA a" in ended.text


def test_a_run_that_is_stopped_is_asked_its_exam_at_the_end_too(place):
    place.write("exam.jsonl", json.dumps({"instruction": QUESTIONS[0][0], "output": QUESTIONS[0][1]}))
    job = stopping_at(3)
    place.train(job=job, exam=["exam.jsonl"], epochs=9)
    assert [event.step for event in events_of(job, ExamAsked)] == [0, 3]
    job = at({3: asking(Request.DISCARD)})
    place.train(job=job, name="b", exam=["exam.jsonl"], epochs=9)
    assert [event.step for event in events_of(job, ExamAsked)] == [0]


def test_a_run_that_is_discarded_during_its_last_exam_is_gone(place):
    place.write("exam.jsonl", json.dumps({"instruction": QUESTIONS[0][0], "output": QUESTIONS[0][1]}))

    def discard(job, event):
        if events_of(job, Step) and isinstance(event, Stage) and event.text.startswith("Asking the exam"):
            job.control.ask(Request.DISCARD)

    assert place.train(job=watched_job(discard), exam=["exam.jsonl"], max_steps=1).outcome == "stopped"
    assert not place.lora().exists()


def test_a_missing_exam_is_told_before_a_run_begins(place):
    with pytest.raises(DataError, match="no dataset named"):
        place.train(exam=["gone.jsonl"])
    assert not place.lora().exists()
