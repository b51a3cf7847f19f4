"""The queue runner with a fake engine: the order of runs, what stops the queue, and restarts."""

import threading
import time
from dataclasses import dataclass, field
from types import SimpleNamespace

import pytest
from training_pro.core.errors import ModelError, SavingError, SettingsError
from training_pro.core.host import ModelCard
from training_pro.core.jobs import JobEnded, Request, Session
from training_pro.records.folder import hold_run_lock
from training_pro.records.queue import QueueRunner
from training_pro.tests.fakes import FakeHost, make_folders

PATIENCE_SECONDS = 120
DONE = JobEnded(outcome="finished", text="")


@dataclass
class Host(FakeHost):
    """A host whose model may change."""

    name: str = "toy"

    def card(self):
        return ModelCard(self.name, {}, None, "auto")


@dataclass
class Program:
    """A session with a queue and a fake engine; each run waits until it is released, and ends as in `outcomes`."""

    host: Host
    session: Session = field(default_factory=Session)
    outcomes: dict[str, object] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)
    going: dict[str, threading.Event] = field(default_factory=dict)
    restarts: list = field(default_factory=list)

    def __post_init__(self):
        self.line = QueueRunner(self.host, self, self.session)

    def check_start(self, settings, host, *, resume=""):
        problem = self.problems.get(settings.what.name)
        return SimpleNamespace(problems=(problem,) if problem else (), steps=7)

    def train(self, settings, host, job, *, resume=""):
        return self.run(settings.what.name)

    def run(self, name):
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
        return self.session.train(name, self.host, lambda job: self.run(name))

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

    def wait_for_queue(self, *, waiting="", done):
        """Wait until no job runs, and the queue has these runs; those that are done finished unless said."""
        expected = [tuple(each.split()) if " " in each else (each, "finished") for each in done]
        self.wait_until(lambda: self.session.current is None and self.done == expected)
        assert "".join(self.waits) == waiting

    def restart(self):
        """Return another program on the same folders. This one holds no lock, as if it had been killed."""
        self.session.auto_start.disable("it is gone")
        self.session.auto_start.release(self.session.auto_start.current_number)
        self.restarts.append(Program(Host(self.host.folders), going=self.going, restarts=self.restarts))
        return self.restarts[-1]

    @property
    def waits(self):
        return [run.name for run in self.line.queue.waiting]

    @property
    def done(self):
        return [(run.name, run.outcome) for run in self.line.queue.done]


@pytest.fixture
def program(tmp_path):
    first = Program(Host(make_folders(tmp_path)))
    yield first
    for each in (first, *first.restarts):
        each.session.auto_start.disable("the test is over")
    for event in first.going.values():
        event.set()
    for each in (first, *first.restarts):  # a job still in progress would disturb the following tests
        each.wait_until(lambda each=each: each.session.current is None)


def test_the_next_run_starts_when_one_has_ended_whatever_its_outcome(program):
    program.outcomes = {"a": "failed", "b": ModelError("Out of memory.\nMore."), "c": "finished"}
    program.put("a")
    assert program.began == []
    program.start("first")
    program.put("b", "c")
    program.release("first", "a", "b", "c")
    program.wait_for_queue(done=["a failed", "b failed", "c"])
    assert program.began == ["first", "a", "b", "c"]
    assert [run.text for run in program.line.queue.done] == ["a failed", "Out of memory.", "c finished"]
    program.wait_until(lambda: not program.session.auto_start.enabled)


def test_a_stop_by_hand_pauses_the_queue_until_it_is_resumed(program):
    first = program.start("first")
    program.put("a", "b")
    first.control.ask(Request.STOP)
    program.release("first")
    program.wait_until(lambda: program.session.auto_start.off_reason == "Training 'first' was stopped.")
    assert (program.began, program.waits) == (["first"], ["a", "b"])
    program.line.start()
    program.wait_until(lambda: program.began == ["first", "a"])
    program.session.current.control.ask(Request.DISCARD)
    program.release("a")
    program.wait_for_queue(waiting="b", done=["a"])
    program.line.start()
    program.release("b")
    program.wait_for_queue(done=["a", "b"])
    with pytest.raises(SavingError, match="The queue is empty"):
        program.line.start()


def test_another_job_or_a_chat_is_waited_for_but_its_end_starts_nothing(program):
    program.put("a")
    resume = threading.Event()
    for wait in (0, PATIENCE_SECONDS):
        program.wait_until(lambda: program.session.current is None)
        program.session.start("answer", "", program.host, lambda job, wait=wait: (resume.wait(wait), DONE)[1])
    program.line.start()
    assert program.session.auto_start.pending and program.began == []
    resume.set()
    program.release("a")
    program.wait_for_queue(done=["a"])
    program.put("b")
    with program.host.exclusive_use():  # a chat
        program.line.start()
        program.wait_until(lambda: program.session.current is not None)
        assert program.began == ["a"]
    program.release("b")
    program.wait_for_queue(done=["b"])


def test_a_run_for_another_model_or_that_another_program_trains_is_skipped_and_stays(program):
    program.put("a")
    program.host.name = "other"
    program.put("b", "c")
    with hold_run_lock("b", program.host.folders):
        program.line.start()
        program.release("c")
        program.wait_for_queue(waiting="ab", done=["c"])
        program.wait_until(lambda: "None of the waiting runs can start" in program.session.auto_start.off_reason)
    reasons = [run.skipped for run in program.line.queue.waiting]
    assert reasons[0] == "This run was added for toy, but other is loaded."
    assert reasons[1].startswith("'b' is already being trained.")
    program.host.name = "toy"
    program.line.start()
    program.release("a")
    program.wait_for_queue(waiting="b", done=["c", "a"])


def test_every_problem_is_raised_when_a_run_is_added(program):
    program.problems = {"bad": "Dataset: there is no dataset named 'story.txt'."}
    program.start("first")
    program.put("a")
    refusals = {"first": "also called 'first'", "a": "also called 'a'", "bad": "Dataset:", "../x": "is a path"}
    for name, sentence in refusals.items():
        with pytest.raises(SettingsError, match=sentence):
            program.put(name)
    program.put("a", if_exists="new_name")
    assert program.waits == ["a", "a"]


def test_after_a_restart_nothing_starts_by_itself(program):
    program.start("first")
    program.put("a", "b")
    program.release("first")
    program.wait_until(lambda: program.began == ["first", "a"])
    second = program.restart()  # in the middle of 'a', before its first step
    second.line.recover()
    assert (second.waits, second.began, second.session.auto_start.enabled) == (["a", "b"], [], False)
    second.line.start()
    second.wait_until(lambda: second.began == ["a"])
    folder = program.host.folders.loras / "a"
    (folder / "checkpoint-3").mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "stopped"}')
    third = second.restart()
    for _ in range(2):
        third.line.recover()
        assert (third.waits, third.done) == (["b"], [("a", "stopped")])


def test_a_run_that_ended_while_no_program_was_there_is_recorded(program):
    program.put("a")
    program.line.start()
    program.wait_until(lambda: program.began == ["a"])
    session, number = Session(), program.session.auto_start.current_number
    session.auto_start.current_number = number
    session.train("a", program.host, lambda job: DONE, queue_number=number, is_elsewhere=True).log.wait_closed()
    assert Program(Host(program.host.folders), session).done == [("a", "finished")]


def test_an_older_log_is_not_taken_for_that_of_the_run(program):
    folder = program.host.folders.loras / "a"
    folder.mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "finished"}')
    program.put("a", if_exists="replace")
    (folder / "notes.txt").write_text("Written while the run waits.")
    program.line.start()
    program.wait_until(lambda: program.began == ["a"])
    again = program.restart()
    again.line.recover()
    assert (again.waits, again.done) == (["a"], [])
