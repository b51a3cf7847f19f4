"""The queue of two real programs on one folder: no run is lost or started twice, and a kill blocks nothing."""

import subprocess
import sys
import textwrap
from collections import Counter
from contextlib import contextmanager

import pytest
from training_pro.core.jobs import Session
from training_pro.records.queue import QueueRunner
from training_pro.tests.conftest import ROOT
from training_pro.tests.fakes import FakeHost, make_folders

PROGRAM = f"""
    import sys, threading
    sys.path.insert(0, {str(ROOT / "tests")!r})
    import conftest
    from pathlib import Path
    from types import SimpleNamespace
    from training_pro.core.errors import SavingError
    from training_pro.core.jobs import JobEnded, Session
    from training_pro.hosts.standalone import standalone_folders
    from training_pro.records.queue import QueueRunner
    from training_pro.tests.fakes import FakeHost

    class Engine:
        def check_start(self, settings, host, *, resume=""):
            return SimpleNamespace(problems=(), steps=1)

        def train(self, settings, host, job, *, resume=""):
            print(settings.what.name, flush=True)
            threading.Event().wait(float(sys.argv[3]))
            return JobEnded(outcome="finished", text="")

    me, host = sys.argv[2], FakeHost(standalone_folders(Path(sys.argv[1])))
    line = QueueRunner(host, Engine(), Session())

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
        threading.Event().wait(0.01)
"""
TAKE = """
    line.add({"name": me, "data": ["story.txt"]})
    line.start()
    sys.stdin.read()
"""


@contextmanager
def program(code, folders, name, seconds=0.03):
    text = textwrap.dedent(PROGRAM) + textwrap.dedent(code)
    command = [sys.executable, "-c", text, str(folders.user_data), name, str(seconds)]
    started = subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=ROOT)
    try:
        yield started
    finally:
        started.kill()
        started.wait()


def signal(*programs):
    for each in programs:
        assert each.stdout.readline() == "ready\n"
    for each in programs:
        each.stdin.write("go on\n")
        each.stdin.flush()


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


@pytest.fixture
def line(folders):
    return QueueRunner(FakeHost(folders), None, Session())


def test_runs_added_by_two_programs_at_once_are_all_there_and_start_once(folders, line):
    with program(PUT_THEN_TAKE, folders, "a") as first, program(PUT_THEN_TAKE, folders, "b") as second:
        signal(first, second)
        signal(first, second)
        started = [name for each in (first, second) for name in each.communicate(timeout=300)[0].split()]
        assert (first.returncode, second.returncode) == (0, 0)
    names = [f"{name}-{number}" for name in "ab" for number in range(5)]
    assert sorted(started) == names
    current = line.queue
    assert (current.waiting, current.begun, current.numbered) == ((), (), 10)
    assert Counter((run.name, run.outcome) for run in current.done) == Counter((n, "finished") for n in names)


def test_a_run_belongs_to_its_program_from_the_first_moment_until_that_is_killed(folders, line):
    """Also before it locks the name of the LoRA: reading the data may take a while."""
    with program(TAKE, folders, "a", seconds=600) as other:
        assert other.stdout.readline() == "a\n"
        line.recover()
        assert [run.name for run in line.queue.begun] == ["a"]
    line.recover()
    assert ([run.name for run in line.queue.waiting], line.queue.begun) == (["a"], ())
    assert [path.name for path in folders.training.glob("*.lock")] == ["queue.json.lock"]
