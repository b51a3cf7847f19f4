"""The queue of two real programs on one folder: no run is lost or started twice, and a kill blocks nothing."""

from __future__ import annotations

import subprocess
import sys
import textwrap
from collections import Counter

import pytest
from training_pro.core.errors import SavingError
from training_pro.core.jobs import Session
from training_pro.records.queue import QueueRunner, queue
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import FakeHost, make_folders

PROGRAM = f"""
    import importlib.util, sys, time
    from pathlib import Path
    from types import SimpleNamespace
    spec = importlib.util.spec_from_file_location("training_pro", {str(ROOT / "script.py")!r})
    sys.modules["training_pro"] = module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    from training_pro.core.errors import SavingError
    from training_pro.core.jobs.events import JobEnded
    from training_pro.core.jobs.session import Session
    from training_pro.hosts.standalone import standalone_folders
    from training_pro.records.queue import queue
    from training_pro.records.queue.queue_runner import QueueRunner
    from training_pro.tests.fakes import FakeHost

    class Engine:
        def check_start(self, settings, host, *, resume=""):
            return SimpleNamespace(problems=(), steps=1)

        def train(self, settings, host, job, *, resume=""):
            print(settings.what.name, flush=True)
            time.sleep(SECONDS)
            return JobEnded(outcome="finished", text="")

    me, SECONDS = sys.argv[2], float(sys.argv[3])
    host, session = FakeHost(standalone_folders(Path(sys.argv[1]))), Session()
    line = QueueRunner(host, Engine(), session)

    def wait_for_signal():
        print("ready", flush=True)
        return sys.stdin.readline()
"""
PUT_THEN_TAKE = """
    wait_for_signal()
    for number in range(5):
        line.add({"name": f"{me}-{number}", "data": ["story.txt"]})
    wait_for_signal()
    try:
        line.start()
    except SavingError:  # the other program was faster
        pass
    while (known := line.queue).waiting or known.begun:
        time.sleep(0.01)
"""
TAKE = """
    line.add({"name": me, "data": ["story.txt"]})
    line.start()
    time.sleep(60)
"""
HOLD = """
    with queue.lock_queue(host.folders.queue):
        wait_for_signal()
"""


def start_program(code, folders, name, seconds=0.03):
    text = textwrap.dedent(PROGRAM) + textwrap.dedent(code)
    command = [sys.executable, "-c", text, str(folders.user_data), name, str(seconds)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)


def signal(*programs):
    for program in programs:
        assert program.stdout.readline() == "ready\n"
    for program in programs:
        program.stdin.write("go on\n")
        program.stdin.flush()


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


@pytest.fixture
def line(folders):
    return QueueRunner(FakeHost(folders), None, Session())


def test_runs_added_by_two_programs_at_once_are_all_there_and_start_once(folders, line):
    programs = [start_program(PUT_THEN_TAKE, folders, name) for name in "ab"]
    try:
        signal(*programs)
        for program in programs:
            assert program.stdout.readline() == "ready\n"
        waiting = line.queue.waiting
        names = [f"{name}-{number}" for name in "ab" for number in range(5)]
        assert sorted(run.name for run in waiting) == names
        assert [run.number for run in waiting] == list(range(1, 11))
        for program in programs:
            program.stdin.write("go on\n")
            program.stdin.flush()
        outputs = [program.communicate(timeout=60)[0].split() for program in programs]
        assert [program.returncode for program in programs] == [0, 0]
    finally:
        for program in programs:
            program.kill()
            program.wait()
    assert Counter(outputs[0] + outputs[1]) == Counter(names)
    current = line.queue
    assert (current.waiting, current.begun) == ((), ())
    assert Counter((run.name, run.outcome) for run in current.done) == Counter(
        (name, "finished") for name in names
    )


def test_a_run_belongs_to_its_program_from_the_first_moment_until_that_is_killed(folders, line):
    """Also before it locks the name of the LoRA: reading the data may take a while."""
    other = start_program(TAKE, folders, "a", seconds=60)
    try:
        assert other.stdout.readline() == "a\n"
        line.recover()
        assert [run.name for run in line.queue.begun] == ["a"]
    finally:
        other.kill()
        other.wait()
    line.recover()
    current = line.queue
    assert ([run.name for run in current.waiting], current.begun) == (["a"], ())
    assert [path.name for path in folders.training.glob("*.lock")] == ["queue.json.lock"]


def test_a_change_waits_for_another_program_but_not_for_a_killed_one(folders, line, monkeypatch):
    queue.save(folders.queue, queue.Queue().with_run("a", "toy", {}, 1))
    monkeypatch.setattr(queue, "PATIENCE_SECONDS", 0.1)
    other = start_program(HOLD, folders, "b")
    try:
        assert other.stdout.readline() == "ready\n"
        with pytest.raises(SavingError, match=r"has been locked by another program for 0\.1 seconds\."):
            line.remove(1)
        assert len(line.queue.waiting) == 1  # reading needs no lock
    finally:
        other.kill()
        other.wait()
    line.remove(1)
    assert line.queue.waiting == ()
