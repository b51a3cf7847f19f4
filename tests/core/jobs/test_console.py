"""A job in lines: which events are told, in which words, and how many of the steps."""

import threading
import time
from dataclasses import replace

import pytest
from training_pro.core.jobs import (
    EtaEstimator,
    EvaluationDone,
    JobEnded,
    LibraryMessage,
    Note,
    RecallFigures,
    RecallMeasured,
    RunPlanned,
    SampleGenerated,
    Session,
    Step,
    console,
)
from training_pro.tests.fakes import FakeHost

NOTED = {"epoch": 0.5, "why": "planned", "seconds": 1.0}


def progress(step, *, at=0.0, steps=100, seconds=2.0, **more):
    figures = {"loss": 2.34567, "smoothed": 2.5, "learning_rate": 1.9e-4, "gradient_norm": 0.5, "tokens": 512}
    return Step(at=at, step=step, steps=steps, epoch=step / 50, seconds=seconds, **figures, **more)


def told(events):
    """Return the numbers of the events that have a line, counted from 1."""
    formatter = console.EventPrinter(print)
    return [number for number, event in enumerate(events, start=1) if formatter.line(event)]


PLANNED = RunPlanned(name="a", model="tiny", steps=8, steps_per_epoch=4, first_step=0, rates=(), settings={})
SAMPLE = SampleGenerated(step=0, prompt="Once\nupon", text=" a " + 60 * "time ", without=" no")
LINES = [
    (
        EvaluationDone(step=3, loss=2.5, perplexity=12.18249, accuracy=0.4567, tokens=99, **NOTED),
        "Validation, step 3: loss 2.5000, perplexity 12.18, 45.7% of tokens correct",
    ),
    (LibraryMessage(source="py.warnings", text="a.py:1: FutureWarning: this will go away"), ""),
    (JobEnded(outcome="failed", text="broken", details="Traceback"), "broken\nTraceback"),
    (
        progress(10),
        "step 10/100  epoch 0.20  loss 2.3457 (smoothed 2.5000)  learning rate 0.00019  256 tokens/s "
        f" 3 min 00 s left, ends at about {time.strftime('%H:%M', time.localtime(180))}",
    ),
]


@pytest.mark.parametrize(("event", "line"), LINES, ids=lambda value: type(value).__name__)
def test_each_event_in_words(event, line):
    assert console.EventPrinter(print).line(event) == line


def test_of_quick_steps_one_in_ten_seconds_is_told_and_the_last_or_those_that_the_run_chose():
    assert told(progress(step, at=step * 0.5) for step in range(1, 101)) == [1, *range(21, 101, 20), 100]
    for settings, numbers in (
        ({"logging_steps": 10}, [1, *range(10, 100, 10), 95]),
        ({"logging_steps": 40, "logging_first_step": False}, [40, 80, 95]),
    ):
        steps = [progress(step, at=step * 0.5, steps=95) for step in range(1, 96)]
        _, *lines = told([replace(PLANNED, steps=95, settings=settings), *steps])
        assert [number - 1 for number in lines] == numbers


def test_the_time_left_ignores_one_slow_step_but_counts_what_comes_between_steps():
    slow, busy = EtaEstimator(), EtaEstimator()
    for step in range(1, 20):
        slow.update(progress(step, seconds=60.0 if step == 10 else 2.0))
    for step in range(1, 11):
        busy.update(progress(step, extra_time=15.0 if step == 6 else 0.0))
    assert (slow.seconds_left, busy.seconds_left) == (81 * 2.0, 90 * (2.0 + 1.5))


def test_the_time_left_includes_recall_and_answers_to_come_as_long_as_the_last_ones_took():
    """It said 0 s while recall was measured, and after the first of several samples."""
    pace = EtaEstimator()
    figures = RecallFigures(passages=16, recall=0.1, verbatim=0, longest=9, loss=2.0)
    recall = RecallMeasured(step=0, epoch=0.0, why="start", learned=figures, control=None, seconds=20.0, at=20.0)
    before = [replace(SAMPLE, at=30.0 + 10 * number) for number in range(3)]
    for event in (replace(PLANNED, steps=1, recall_every=1, answer_every=1, at=0.0), recall, *before):
        pace.update(event)
    left = []
    after = [replace(SAMPLE, step=1, at=85.0 + 5 * number) for number in range(3)]
    for event in (progress(1, steps=1, at=60.0), replace(recall, step=1, why="end", at=80.0), *after):
        pace.update(event)
        left.append(pace.seconds_left)
    assert left == [50.0, 30.0, 20.0, 10.0, 0.0]
    resumed = EtaEstimator()
    resumed.update(replace(PLANNED, steps=9, evaluate_every=0, recall_every=9, answer_every=0, earlier=(recall,)))
    resumed.update(progress(8, steps=9, seconds=2.0))
    assert resumed.seconds_left == 22.0


def test_a_job_is_told_until_it_ends_and_a_console_that_never_returns_holds_it_not_up():
    session, forever, lines = Session(), threading.Event(), []

    def write(line):
        lines.append(line)
        forever.wait(600)

    def work(job):
        job.log.append(Note(at=0.0, text="one"))
        return JobEnded(at=0.0, outcome="finished", text="two")

    session.set_observer(console.console_observer(write))
    job = session.start("training", "t", FakeHost(), work)
    assert [event.text for event in job.log.follow()] == ["one", "two"]
    forever.set()
    console.print_events(job, lines.append)
    clock = time.strftime("%H:%M:%S", time.localtime(0))
    assert lines[-2:] == [f"{clock}  one", f"{clock}  two"]
