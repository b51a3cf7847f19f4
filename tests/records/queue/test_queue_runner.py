"""The queue runner with a fake engine: the order of runs, what stops the queue, and restarts."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

import pytest
from training_pro.core.errors import ModelError, SavingError, SettingsError
from training_pro.core.host import ModelCard
from training_pro.core.jobs import JobEnded, Request, Session, StartedFromQueue
from training_pro.records.folder import hold_run_lock
from training_pro.records.queue import QueueRunner, queue
from training_pro.tests.fakes import FakeHost, make_folders

PATIENCE_SECONDS = 10


@dataclass(frozen=True)
class Report:
    problems: tuple[str, ...] = ()
    steps: int = 7


@dataclass
class Program:
    """A session with a queue and a fake engine; each run waits until it is released, and ends as in `outcomes`."""

    host: FakeHost
    session: Session = field(default_factory=Session)
    outcomes: dict[str, object] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)
    going: dict[str, threading.Event] = field(default_factory=dict)
    during_check: list = field(default_factory=list)
    restarts: list[Program] = field(default_factory=list)

    def __post_init__(self):
        self.line = QueueRunner(self.host, self, self.session)

    def check_start(self, settings, host, *, resume=""):
        for act in self.during_check:
            act()
        problem = self.problems.get(settings.what.name)
        return Report((problem,) if problem else ())

    def train(self, settings, host, job, *, resume=""):
        name = settings.what.name
        self.began.append(name)
        assert self.going.setdefault(name, threading.Event()).wait(PATIENCE_SECONDS)
        outcome = self.outcomes.get(name, "finished")
        if isinstance(outcome, Exception):
            raise outcome
        return JobEnded(outcome=outcome, text=f"{name} {outcome}\nand more")

    def put(self, *names, **more):
        for name in names:
            self.line.add({"name": name, "data": ["story.txt"], **more})

    def start(self, name):
        """Start a run as the button Start does."""
        return self.session.train(name, self.host, lambda job: self.train(Named(name), None, job))

    def release(self, *names):
        for name in names:
            self.wait_until(lambda name=name: name in self.began)
            self.going.setdefault(name, threading.Event()).set()
            self.wait_until(lambda name=name: (job := self.session.current) is None or job.result_name != name)

    def wait_until(self, condition):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not condition():
            assert time.monotonic() < deadline, (self.began, self.line.queue)
            time.sleep(0.005)

    def wait_until_idle(self):
        """Wait until no job is in progress and the end of the last one has been handled."""
        self.wait_until(lambda: self.session.current is None)
        time.sleep(0.05)
        return self

    @property
    def waits(self):
        return [run.name for run in self.line.queue.waiting]

    @property
    def done(self):
        return [(run.name, run.outcome) for run in self.line.queue.done]


def restarted(program):
    """Return another program on the same folders. The first one holds no lock, as if it had been killed."""
    program.session.auto_start.disable("it is gone")
    program.session.auto_start.release(program.session.auto_start.current_number)
    program.restarts.append(Program(FakeHost(program.host.folders), going=program.going))
    return program.restarts[-1]


class Named:
    def __init__(self, name):
        self.what = self
        self.name = name


@pytest.fixture
def program(tmp_path):
    first = Program(FakeHost(make_folders(tmp_path)))
    yield first
    programs = (first, *first.restarts)
    for program in programs:
        program.session.auto_start.disable("the test is over")
    for event in first.going.values():
        event.set()
    for program in programs:  # a job still in progress would disturb the following tests
        program.wait_until_idle()


def test_the_next_run_starts_when_one_has_ended_whatever_its_outcome(program):
    program.outcomes = {"a": "failed", "b": ModelError("Out of memory.\nMore."), "c": "finished"}
    program.start("first")
    program.put("a", "b", "c")
    assert program.waits == ["a", "b", "c"] and program.session.auto_start.enabled
    program.release("first", "a", "b", "c")
    program.wait_until_idle()
    assert program.began == ["first", "a", "b", "c"]
    assert program.done == [("a", "failed"), ("b", "failed"), ("c", "finished")]
    assert [run.text for run in program.line.queue.done] == ["a failed", "Out of memory.", "c finished"]
    assert program.waits == [] and not program.session.auto_start.enabled
    event = next(e for e in program.session.latest("training").log.since(0) if isinstance(e, StartedFromQueue))
    assert event.text.startswith("Started from the queue (added on 2")
    assert event.text.endswith("; no more runs are waiting.")


def test_a_stop_by_hand_pauses_the_queue_until_it_is_resumed(program):
    first = program.start("first")
    program.put("a", "b")
    first.control.ask(Request.STOP)
    program.release("first")
    program.wait_until_idle()
    assert (program.began, program.waits) == (["first"], ["a", "b"])
    assert program.session.auto_start.off_reason == "Training 'first' was stopped."
    program.line.start()
    program.wait_until(lambda: program.began == ["first", "a"])
    program.session.current.control.ask(Request.DISCARD)
    program.release("a")
    assert program.wait_until_idle().waits == ["b"]
    program.line.start()
    program.release("b")
    assert program.wait_until_idle().done == [("a", "finished"), ("b", "finished")]
    with pytest.raises(SavingError, match="The queue is empty"):
        program.line.start()


def test_a_run_added_while_idle_follows_the_next_run(program):
    program.put("a")
    assert program.wait_until_idle().began == []
    program.start("first")
    program.release("first", "a")
    assert program.wait_until_idle().done == [("a", "finished")]


def test_another_job_is_waited_for_but_its_end_starts_nothing(program):
    program.put("a")
    resume = threading.Event()

    def answering(job):
        resume.wait(PATIENCE_SECONDS)
        return JobEnded(outcome="finished", text="")

    program.session.start("answer", "Answering", program.host, lambda job: JobEnded(outcome="finished", text=""))
    assert program.wait_until_idle().began == []
    program.session.start("answer", "Answering", program.host, answering)
    program.line.start()
    assert program.session.auto_start.pending and program.began == []
    resume.set()
    program.release("a")
    assert program.wait_until_idle().done == [("a", "finished")]


def test_a_chat_is_waited_for_as_start_does(program):
    program.put("a")
    with program.host.exclusive_use():
        program.line.start()
        program.wait_until(lambda: program.session.current is not None)
        assert program.began == []
    program.release("a")


def test_a_run_for_another_model_is_skipped_and_stays(program, monkeypatch):
    models = ["toy"]
    card = lambda self: ModelCard(models[0], {}, None, "auto")  # noqa: E731
    monkeypatch.setattr(FakeHost, "card", card)
    program.put("a")
    models[0] = "other"
    program.put("b", "c")
    program.line.start()
    program.release("b", "c")
    program.wait_until_idle()
    assert program.done == [("b", "finished"), ("c", "finished")]
    (waiting,) = program.line.queue.waiting
    assert (waiting.name, waiting.skipped) == ("a", "This run was added for toy, but other is loaded.")
    assert (
        program.session.auto_start.off_reason
        == "None of the waiting runs can start now. The queue shows the reason for each."
    )
    models[0] = "toy"
    program.line.start()
    program.release("a")
    assert program.wait_until_idle().waits == []


def test_a_run_that_another_program_trains_is_skipped(program):
    program.put("a", "b")
    with hold_run_lock("a", program.host.folders):
        program.line.start()
        program.release("b")
        assert program.wait_until_idle().done == [("b", "finished")]
    (waiting,) = program.line.queue.waiting
    assert waiting.skipped == "'a' is already being trained. It was started on another page or by another command."
    program.line.start()
    program.release("a")
    assert program.wait_until_idle().waits == []


def test_every_problem_is_raised_when_a_run_is_added(program):
    program.problems = {"bad": "Dataset: there is no dataset named 'story.txt'."}
    program.start("first")
    program.put("a")
    for name, sentence in (
        ("first", "an earlier run is also called 'first'"),
        ("a", "an earlier run is also called 'a'"),
        ("bad", "Dataset: there is no"),
        ("../x", "is a path"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            program.put(name)
    program.put("a", if_exists="new_name")
    assert program.waits == ["a", "a"]


def test_a_run_that_ended_while_the_next_was_checked_is_followed_by_it(program):
    program.start("first")
    program.during_check = [lambda: program.release("first"), program.wait_until_idle]
    program.put("a")
    program.during_check = []
    program.release("a")
    assert program.wait_until_idle().done == [("a", "finished")]


def test_after_a_restart_nothing_starts_by_itself(program):
    program.start("first")
    program.put("a", "b")
    program.release("first")
    program.wait_until(lambda: program.began == ["first", "a"])
    second = restarted(program)  # in the middle of 'a', before its first step
    second.line.recover()
    assert (second.waits, second.began, second.session.auto_start.enabled) == (["a", "b"], [], False)
    second.line.start()
    second.wait_until(lambda: second.began == ["a"])
    folder = program.host.folders.loras / "a"
    (folder / "checkpoint-3").mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "stopped"}')
    third = restarted(second)
    third.line.recover()
    assert (third.waits, third.done) == (["b"], [("a", "stopped")])
    third.line.recover()
    assert third.waits == ["b"]


def test_another_program_does_not_touch_a_run_in_progress(program):
    program.put("a")
    program.line.start()
    program.wait_until(lambda: program.began == ["a"])
    other = Program(FakeHost(program.host.folders))
    for line in (other.line, program.line, QueueRunner(program.host, program, program.session)):
        line.recover()
    assert (program.waits, [run.name for run in program.line.queue.begun]) == ([], ["a"])
    program.release("a")
    assert program.wait_until_idle().done == [("a", "finished")]
    assert not list(program.host.folders.training.glob("queue.?.lock"))


def test_two_programs_run_one_of_the_queue_each(program):
    other = Program(FakeHost(program.host.folders))
    program.put("a", "b", "c")
    program.line.start()
    other.line.start()
    program.wait_until(lambda: (program.began, other.began) == (["a"], ["b"]))
    assert sorted(run.name for run in other.line.queue.begun) == ["a", "b"]
    other.session.current.control.ask(Request.STOP)
    other.release("b")
    assert other.wait_until_idle().done == [("b", "finished")]
    program.release("a", "c")
    assert program.wait_until_idle().done == [("b", "finished"), ("a", "finished"), ("c", "finished")]
    assert (program.line.queue.begun, other.began) == ((), ["b"])


def test_a_run_added_while_the_others_were_checked_can_start_at_once(program, monkeypatch):
    other = Program(FakeHost(program.host.folders))
    program.put("a")

    def skip_reason(run):
        if other.line.queue.numbered < 2:
            other.put("b")
        return "not now" if run.name == "a" else ""

    monkeypatch.setattr(program.line, "_skip_reason", skip_reason)
    program.line.start()
    program.release("b")
    assert program.wait_until_idle().done == [("b", "finished")]
    assert [(run.name, run.skipped) for run in program.line.queue.waiting] == [("a", "not now")]


def test_an_older_log_is_not_taken_for_that_of_the_run(program):
    folder = program.host.folders.loras / "a"
    folder.mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "finished"}')
    os.utime(folder, (1, 1))
    program.put("a", if_exists="replace")
    program.line.start()
    program.wait_until(lambda: program.began == ["a"])
    second = restarted(program)
    second.line.recover()
    assert second.waits == ["a"]


def test_a_run_with_a_new_name_is_recovered_by_that_name(program):
    """The LoRA with the original name says nothing about it."""
    for name in ("a", "a-2"):
        folder = program.host.folders.loras / name
        folder.mkdir(parents=True)
        (folder / "training_log.json").write_text('{"ended": "finished"}')
    program.put("a", if_exists="new_name")
    program.line.start()
    program.wait_until(lambda: program.began == ["a-3"])
    made = program.host.folders.loras / "a-3"
    made.mkdir()
    (made / "training_log.json").write_text('{"ended": "stopped"}')
    again = restarted(program)
    again.line.recover()
    assert (again.waits, again.done) == ([], [("a-3", "stopped")])


def test_a_queue_that_cannot_be_written_stops_and_says_so(program, monkeypatch):
    program.put("a")
    monkeypatch.setattr("training_pro.records.queue.queue.write_json", broken)
    program.line.start()
    assert program.wait_until_idle().began == []
    assert "can't be saved in" in program.session.auto_start.off_reason
    assert program.waits == ["a"]


def broken(path, value):
    raise PermissionError(13, "Permission denied", str(path))


def test_the_end_of_a_run_is_never_recorded_for_the_run_that_follows_it(program, monkeypatch):
    """A run that is added while another ends may start before that end is recorded."""
    program.outcomes["a"] = "failed"
    program.start("a")
    save = queue.save

    def end_meanwhile(path, queued):
        monkeypatch.setattr(queue, "save", save)
        program.release("a")
        save(path, queued)

    monkeypatch.setattr(queue, "save", end_meanwhile)
    program.put("b")
    program.wait_until(lambda: "b" in program.began)
    assert program.done == [] and [run.name for run in program.line.queue.begun] == ["b"]
    program.release("b")
    assert program.wait_until_idle().done == [("b", "finished")]
