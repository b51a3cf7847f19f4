"""The queue at work, with an engine of sentences: who begins when, what stops it, what a restart leaves."""

from __future__ import annotations

import os
import threading
import time
from dataclasses import dataclass, field

import pytest
from training_pro.core.errors import ModelError, SavingError, SettingsError
from training_pro.core.host import ModelCard
from training_pro.core.jobs.events import Ended, FromQueue
from training_pro.core.jobs.session import Session
from training_pro.records.folder.run_lock import in_progress
from training_pro.records.queue.queue_runner import InLine
from training_pro.tests.fakes import FakeHost, made_folders

PATIENCE_SECONDS = 10


@dataclass(frozen=True)
class Report:
    problems: tuple[str, ...] = ()
    steps: int = 7


@dataclass
class Night:
    """A session with a queue; each run waits until it is let go, and ends as `fates` say."""

    host: FakeHost
    session: Session = field(default_factory=Session)
    fates: dict[str, object] = field(default_factory=dict)
    problems: dict[str, str] = field(default_factory=dict)
    began: list[str] = field(default_factory=list)
    going: dict[str, threading.Event] = field(default_factory=dict)
    meanwhile: list = field(default_factory=list)
    later: list[Night] = field(default_factory=list)

    def __post_init__(self):
        self.line = InLine(self.host, self, self.session)

    def foresee(self, settings, host, *, resume=""):
        for act in self.meanwhile:
            act()
        problem = self.problems.get(settings.what.name)
        return Report((problem,) if problem else ())

    def train(self, settings, host, job, *, resume=""):
        name = settings.what.name
        self.began.append(name)
        assert self.going.setdefault(name, threading.Event()).wait(PATIENCE_SECONDS)
        fate = self.fates.get(name, "finished")
        if isinstance(fate, Exception):
            raise fate
        return Ended(outcome=fate, text=f"{name} {fate}\nand more")

    def put(self, *names, **more):
        for name in names:
            self.line.add({"name": name, "data": ["story.txt"], **more})

    def start(self, name):
        """As by the button Start."""
        return self.session.train(name, self.host, lambda job: self.train(Named(name), None, job))

    def let_go(self, *names):
        for name in names:
            self.until(lambda name=name: name in self.began)
            self.going.setdefault(name, threading.Event()).set()
            self.until(lambda name=name: (job := self.session.current) is None or job.makes != name)

    def until(self, true):
        deadline = time.monotonic() + PATIENCE_SECONDS
        while not true():
            assert time.monotonic() < deadline, (self.began, self.line.queue)
            time.sleep(0.005)

    def settled(self):
        """Nothing goes, and what followed from the last end is done."""
        self.until(lambda: self.session.current is None)
        time.sleep(0.05)
        return self

    @property
    def waits(self):
        return [run.name for run in self.line.queue.waiting]

    @property
    def done(self):
        return [(run.name, run.outcome) for run in self.line.queue.done]


def restarted(night):
    """Another program on the same folders; the first one is as if it had been killed: it holds nothing."""
    night.session.turns.hold("it is gone")
    night.session.turns.let_go()
    night.later.append(Night(FakeHost(night.host.folders), going=night.going))
    return night.later[-1]


class Named:
    def __init__(self, name):
        self.what = self
        self.name = name


@pytest.fixture
def night(tmp_path):
    made = Night(FakeHost(made_folders(tmp_path)))
    yield made
    nights = (made, *made.later)
    for each in nights:
        each.session.turns.hold("the test is over")
    for event in made.going.values():
        event.set()
    for each in nights:  # a job that still goes would speak into the tests that follow
        each.settled()


def test_the_next_begins_when_one_has_ended_however_that_was(night):
    night.fates = {"a": "failed", "b": ModelError("Out of memory.\nMore."), "c": "finished"}
    night.start("first")
    night.put("a", "b", "c")
    assert night.waits == ["a", "b", "c"] and night.session.turns.going
    night.let_go("first", "a", "b", "c")
    night.settled()
    assert night.began == ["first", "a", "b", "c"]
    assert night.done == [("a", "failed"), ("b", "failed"), ("c", "finished")]
    assert [run.text for run in night.line.queue.done] == ["a failed", "Out of memory.", "c finished"]
    assert night.waits == [] and not night.session.turns.going
    told = next(e for e in night.session.latest("training").log.since(0) if isinstance(e, FromQueue))
    assert told.text.startswith("Started from the queue, where it was put at 2")
    assert told.text.endswith("; it was the last one.")


def test_a_stop_by_hand_ends_the_row_until_it_is_told_to_go_on(night):
    first = night.start("first")
    night.put("a", "b")
    first.control.stop()
    night.let_go("first")
    night.settled()
    assert (night.began, night.waits) == (["first"], ["a", "b"])
    assert night.session.turns.said == "Training 'first' was stopped by hand."
    night.line.go_on()
    night.until(lambda: night.began == ["first", "a"])
    night.session.current.control.throw_away()
    night.let_go("a")
    assert night.settled().waits == ["b"]
    night.line.go_on()
    night.let_go("b")
    assert night.settled().done == [("a", "finished"), ("b", "finished")]
    with pytest.raises(SavingError, match="Nothing waits"):
        night.line.go_on()


def test_what_is_put_in_while_nothing_goes_follows_the_next_run(night):
    night.put("a")
    assert night.settled().began == []
    night.start("first")
    night.let_go("first", "a")
    assert night.settled().done == [("a", "finished")]


def test_another_job_is_waited_for_but_its_end_begins_nothing_by_itself(night):
    night.put("a")
    go_on = threading.Event()

    def answering(job):
        go_on.wait(PATIENCE_SECONDS)
        return Ended(outcome="finished", text="")

    night.session.start("answer", "Answering", night.host, lambda job: Ended(outcome="finished", text=""))
    assert night.settled().began == []
    night.session.start("answer", "Answering", night.host, answering)
    night.line.go_on()
    assert night.session.turns.due and night.began == []
    go_on.set()
    night.let_go("a")
    assert night.settled().done == [("a", "finished")]


def test_a_chat_is_waited_for_as_start_does(night):
    night.put("a")
    with night.host.exclusive_use():
        night.line.go_on()
        night.until(lambda: night.session.current is not None)
        assert night.began == []
    night.let_go("a")


def test_what_was_made_for_another_model_is_passed_over_and_stays(night, monkeypatch):
    loaded = ["toy"]
    card = lambda self: ModelCard(loaded[0], {}, None, "auto")  # noqa: E731
    monkeypatch.setattr(FakeHost, "card", card)
    night.put("a")
    loaded[0] = "other"
    night.put("b", "c")
    night.line.go_on()
    night.let_go("b", "c")
    night.settled()
    assert night.done == [("b", "finished"), ("c", "finished")]
    (waiting,) = night.line.queue.waiting
    assert (waiting.name, waiting.skipped) == ("a", "It was made for toy, and other is loaded.")
    assert night.session.turns.said == "None of those that wait can begin now; each says why."
    loaded[0] = "toy"
    night.line.go_on()
    night.let_go("a")
    assert night.settled().waits == []


def test_what_another_program_trains_just_now_is_passed_over(night):
    night.put("a", "b")
    with in_progress("a", night.host.folders):
        night.line.go_on()
        night.let_go("b")
        assert night.settled().done == [("b", "finished")]
    (waiting,) = night.line.queue.waiting
    assert waiting.skipped == "'a' is being trained just now, by another page or command."
    night.line.go_on()
    night.let_go("a")
    assert night.settled().waits == []


def test_everything_that_would_be_refused_is_refused_when_it_is_added(night):
    night.problems = {"bad": "Data: there is no 'story.txt'."}
    night.start("first")
    night.put("a")
    for name, sentence in (
        ("first", "'first' is the name of a run before it"),
        ("a", "'a' is the name of a run before it"),
        ("bad", "Data: there is no"),
        ("../x", "is a path"),
    ):
        with pytest.raises(SettingsError, match=sentence):
            night.put(name)
    night.put("a", if_exists="new_name")
    assert night.waits == ["a", "a"]


def test_a_run_that_ended_while_the_next_was_looked_at_is_followed_all_the_same(night):
    night.start("first")
    night.meanwhile = [lambda: night.let_go("first"), night.settled]
    night.put("a")
    night.meanwhile = []
    night.let_go("a")
    assert night.settled().done == [("a", "finished")]


def test_after_a_restart_nothing_begins_by_itself(night):
    night.start("first")
    night.put("a", "b")
    night.let_go("first")
    night.until(lambda: night.began == ["first", "a"])
    again = restarted(night)  # in the middle of 'a', before its first step
    again.line.set_right()
    assert (again.waits, again.began, again.session.turns.going) == (["a", "b"], [], False)
    again.line.go_on()
    again.until(lambda: again.began == ["a"])
    folder = night.host.folders.loras / "a"
    (folder / "checkpoint-3").mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "stopped"}')
    later = restarted(again)
    later.line.set_right()
    assert (later.waits, later.done) == (["b"], [("a", "stopped")])
    later.line.set_right()
    assert later.waits == ["b"]


def test_another_program_leaves_alone_what_goes_in_the_first(night):
    night.put("a")
    night.line.go_on()
    night.until(lambda: night.began == ["a"])
    other = Night(FakeHost(night.host.folders))
    for line in (other.line, night.line, InLine(night.host, night, night.session)):
        line.set_right()
    assert (night.waits, [run.name for run in night.line.queue.begun]) == ([], ["a"])
    night.let_go("a")
    assert night.settled().done == [("a", "finished")]
    assert not list(night.host.folders.training.glob("queue.?.lock"))


def test_two_programs_have_a_run_of_the_queue_each(night):
    other = Night(FakeHost(night.host.folders))
    night.put("a", "b", "c")
    night.line.go_on()
    other.line.go_on()
    night.until(lambda: (night.began, other.began) == (["a"], ["b"]))
    assert sorted(run.name for run in other.line.queue.begun) == ["a", "b"]
    other.session.current.control.stop()
    other.let_go("b")
    assert other.settled().done == [("b", "finished")]
    night.let_go("a", "c")
    assert night.settled().done == [("b", "finished"), ("a", "finished"), ("c", "finished")]
    assert (night.line.queue.begun, other.began) == ((), ["b"])


def test_what_was_put_in_while_the_others_were_looked_at_can_begin_at_once(night, monkeypatch):
    other = Night(FakeHost(night.host.folders))
    night.put("a")

    def looked(run):
        if other.line.queue.numbered < 2:
            other.put("b")
        return "not now" if run.name == "a" else ""

    monkeypatch.setattr(night.line, "_skip_reason", looked)
    night.line.go_on()
    night.let_go("b")
    assert night.settled().done == [("b", "finished")]
    assert [(run.name, run.skipped) for run in night.line.queue.waiting] == [("a", "not now")]


def test_what_stood_there_before_is_not_taken_for_the_run(night):
    folder = night.host.folders.loras / "a"
    folder.mkdir(parents=True)
    (folder / "training_log.json").write_text('{"ended": "finished"}')
    os.utime(folder, (1, 1))
    night.put("a", if_exists="replace")
    night.line.go_on()
    night.until(lambda: night.began == ["a"])
    again = restarted(night)
    again.line.set_right()
    assert again.waits == ["a"]


def test_under_a_new_name_it_is_looked_for_by_that_name(night):
    """The LoRA whose name it was asked under says nothing of it."""
    for name in ("a", "a-2"):
        folder = night.host.folders.loras / name
        folder.mkdir(parents=True)
        (folder / "training_log.json").write_text('{"ended": "finished"}')
    night.put("a", if_exists="new_name")
    night.line.go_on()
    night.until(lambda: night.began == ["a-3"])
    made = night.host.folders.loras / "a-3"
    made.mkdir()
    (made / "training_log.json").write_text('{"ended": "stopped"}')
    again = restarted(night)
    again.line.set_right()
    assert (again.waits, again.done) == ([], [("a-3", "stopped")])


def test_a_queue_that_cannot_be_written_stops_and_says_so(night, monkeypatch):
    night.put("a")
    monkeypatch.setattr("training_pro.records.queue.queue.write_json", broken)
    night.line.go_on()
    assert night.settled().began == []
    assert "cannot be kept in" in night.session.turns.said
    assert night.waits == ["a"]


def broken(path, value):
    raise PermissionError(13, "Permission denied", str(path))
