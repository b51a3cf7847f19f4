"""A job in lines: which events are told, in which words, and how many of the steps."""

import threading
import time
from dataclasses import replace
from pathlib import Path

import pytest
from training_pro.core.jobs import (
    Answer,
    CheckpointSaved,
    DownloadProgress,
    EtaEstimator,
    EvaluationDone,
    JobEnded,
    LibraryMessage,
    MachineUse,
    Note,
    PerplexityMeasured,
    RecallFigures,
    RecallMeasured,
    RunPlanned,
    SampleGenerated,
    Session,
    Stage,
    Step,
    TimeLimited,
    console,
)
from training_pro.tests.fakes import FakeHost

NOTED = {"epoch": 0.5, "why": "planned", "seconds": 1.0}


def progress(step, *, at=0.0, steps=100, seconds=2.0, **more):
    figures = {"loss": 2.34567, "smoothed": 2.5, "learning_rate": 1.9e-4, "gradient_norm": 0.5, "tokens": 512}
    return Step(at=at, step=step, steps=steps, epoch=step / 50, seconds=seconds, **figures, **more)


def told(events):
    """Return the numbers of the events that have a line, counted from 1."""
    formatter = console.EventFormatter()
    return [number for number, event in enumerate(events, start=1) if formatter.line(event)]


PLANNED = RunPlanned(name="a", model="tiny", steps=8, steps_per_epoch=4, first_step=0, rates=(), settings={})
EVALUATED = EvaluationDone(step=3, loss=2.5, perplexity=12.18249, accuracy=0.4567, tokens=99, **NOTED)
SIZES = {"tokens": 1200, "stride": 4, "max_length": 8}
PERPLEXITY = PerplexityMeasured(
    model="m", lora="-", dataset="a.txt", perplexity=12.5, loss=2.5, seconds=2.0, right=0.4567, **SIZES
)
SAMPLE = SampleGenerated(step=0, prompt="Once\nupon", text=" a " + 60 * "time ", without=" no")
LINES = [
    (PERPLEXITY, "a.txt without a LoRA: perplexity 12.5000, 45.7% of 1,200 tokens correct (2 s)"),
    (
        replace(EVALUATED, by_source={"a.txt": 2.0, "b.txt": 3.0}, context_gain=0.25),
        "Validation, step 3: loss 2.5000, perplexity 12.18, 45.7% of tokens correct, a.txt 2.0000, "
        "b.txt 3.0000, context gain 0.2500",
    ),
    (Stage(text="Slicing story.txt", share=0.5), "Slicing story.txt 50% ..."),
    (PLANNED, "Training 'a' on tiny: 8 steps, 4 per epoch."),
    (LibraryMessage(source="torch", text="t\n  warnings.warn("), "t"),
    (LibraryMessage(source="py.warnings", text="a.py:1: FutureWarning: this will go away"), ""),
    (Answer(side="with", piece="once"), ""),
    (JobEnded(outcome="failed", text="broken", details="Traceback"), "broken\nTraceback"),
    (replace(SAMPLE, step=3), f"Step 3, 'Once upon' -> 'a {19 * 'time '}...'"),
    (CheckpointSaved(step=3, folder=Path("run/c"), reason="user"), "Checkpoint saved at step 3: c"),
    (
        progress(10),
        "step 10/100  epoch 0.20  loss 2.3457 (smoothed 2.5000)  learning rate 0.00019  256 tokens/s "
        f" 3 min 00 s left, ends at about {time.strftime('%H:%M', time.localtime(180))}",
    ),
]


@pytest.mark.parametrize(("event", "line"), LINES, ids=lambda value: type(value).__name__)
def test_each_event_in_words(event, line):
    assert console.EventFormatter().line(event) == line


def test_what_a_library_repeats_is_told_once_in_a_job():
    said = [LibraryMessage(source="py.warnings", text=text) for text in ("cast\n  warn(", "cast", "other", "cast")]
    assert told(said) == [1, 3]


def test_of_quick_steps_one_in_ten_seconds_is_told_and_the_last_or_those_that_the_run_chose():
    assert told(progress(step, at=step * 0.5) for step in range(1, 101)) == [1, *range(21, 101, 20), 100]
    for settings, numbers in (
        ({"logging_steps": 10}, [1, *range(10, 100, 10), 95]),
        ({"logging_steps": 40, "logging_first_step": False}, [40, 80, 95]),
        ({"logging_steps": 1, "logging_first_step": False}, list(range(1, 96))),
    ):
        steps = [progress(step, at=step * 0.5, steps=95) for step in range(1, 96)]
        _, *lines = told([replace(PLANNED, steps=95, settings=settings), *steps])
        assert [number - 1 for number in lines] == numbers


def test_of_a_download_one_word_in_ten_seconds_is_told_and_the_last():
    formatter = console.EventFormatter()
    bytes_by_second = [(at, at * 10_000_000) for at in range(26)] + [(25.5, 255_000_000)]
    came = [
        DownloadProgress(at=float(at), done=done, total=255_000_000, speed=1e7) for at, done in bytes_by_second
    ]
    assert [line for event in came if (line := formatter.line(event))] == [
        "0%: 0 bytes of 255 MB, 10 MB/s, 26 s left",
        "39%: 100 MB of 255 MB, 10 MB/s, 16 s left",
        "78%: 200 MB of 255 MB, 10 MB/s, 5.5 s left",
        "100%: 255 MB of 255 MB",
    ]


def test_what_the_run_takes_stands_on_one_step_a_minute():
    formatter = console.EventFormatter()
    use = MachineUse(cards=1, peak=12_300_000_000, total=24_000_000_000, busy=98, celsius=71, watts=285)
    assert formatter.line(use) == ""
    lines = [formatter.line(progress(step, at=step * 10.0)) for step in range(1, 15)]
    assert [number for number, line in enumerate(lines, start=1) if "GPU" in line] == [1, 7, 13]
    assert lines[0].endswith("  GPU: peak 12.3 GB of 24 GB so far, 98% busy, 71 °C, 285 W")


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


def test_the_time_left_is_never_more_than_the_time_that_a_run_may_take():
    pace = EtaEstimator()
    pace.update(TimeLimited(seconds=120))
    pace.update(progress(1, seconds=10.0, at=1000.0))
    assert (pace.seconds_left, pace.share) == (120, 0.01)
    pace.update(progress(7, seconds=10.0, at=1090.0))
    assert (pace.seconds_left, pace.share) == (30, 0.75)
    pace.update(progress(10, seconds=10.0, at=1125.0))
    assert pace.seconds_left == 0
