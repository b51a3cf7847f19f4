"""Runs in a process of their own: they obey the tab, outlive its program, and are found again."""

import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from contextlib import contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace

import psutil
import pytest
from training_pro.core import jobs
from training_pro.core.engine import AnswerRequest, MergeRequest, PreviewQuery
from training_pro.core.errors import BusyError, SettingsError
from training_pro.core.host import OwnProcess
from training_pro.core.jobs import Answer, Note, Request, RunPlanned, Session, Stage, StageKind, Step, event_file
from training_pro.engine import process_engine
from training_pro.engine.process_engine import ProcessEngine, follow_to_end
from training_pro.records.folder import run_files, runs_in_progress
from training_pro.records.remote import send_request
from training_pro.tests.fakes import FakeHost

SCRIPT = Path(__file__).resolve().parents[2] / "script.py"
LONG = {"epochs": 40, "save_every": 9, "dropout": 0.1}
PROGRAM = """
import importlib.util, sys
spec = importlib.util.spec_from_file_location("training_pro", sys.argv[1])
sys.modules["training_pro"] = module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
from training_pro.tests.engine.test_own_process import begin
begin(*sys.argv[2:])
"""
"""A program with the tab, which starts a run and waits for it."""
KILLED = (
    "The process that trained 'a' has ended unexpectedly. Perhaps the computer ran out of RAM. You can resume it "
    "from its last checkpoint."
)


@pytest.fixture
def own(place):
    target = OwnProcess(Path(sys.executable), str(place.tiny))
    return Tab(place, FakeHost(place.folders, own_process=target), ProcessEngine(), Session())


@dataclass
class Tab:
    place: object
    host: FakeHost
    engine: ProcessEngine
    session: Session

    def start(self, **more):
        settings = self.place.settings(**more)
        return self.session.train("a", self.host, lambda job: self.engine.train(settings, self.host, job))


def begin(user_data, tiny, resume=""):
    from training_pro.hosts.standalone import standalone_folders
    from training_pro.tests.tiny import Workspace

    place = Workspace(standalone_folders(Path(user_data)), Path(tiny))
    host = FakeHost(place.folders, own_process=OwnProcess(Path(sys.executable), tiny))
    engine, settings = ProcessEngine(), place.settings(**LONG)
    job = Session().train("a", host, lambda job: engine.train(settings, host, job, resume=resume))
    job.log.wait_closed()


def start_program(place, *resume):
    """Start a program with the tab, in a process group of its own."""
    command = [sys.executable, "-c", PROGRAM, str(SCRIPT), str(place.folders.user_data), str(place.tiny), *resume]
    return subprocess.Popen(command, start_new_session=True, stderr=subprocess.DEVNULL)


def wait_for(job, condition):
    end = time.monotonic() + 300
    while not any(condition(event) for event in job.log.since(0)):
        assert job.running and time.monotonic() < end, job.end
        time.sleep(0.02)


def is_step(event):
    return isinstance(event, Step)


def test_a_run_obeys_the_tab_and_gives_the_bits_of_a_run_in_its_program(own, place):
    @contextmanager
    def lend():
        yield
        raise RuntimeError("CUDA out of memory.")

    place.train(name="here")
    own.host.own_process, own.host.loras = replace(own.host.own_process, lend_memory=lend), ("a",)
    job = own.start()
    while job.control.forward is None:
        time.sleep(0.02)
    job.control.ask(Request.PAUSE)  # while the process still imports its libraries
    wait_for(job, lambda event: isinstance(event, Stage) and event.kind is StageKind.PAUSED)
    assert job.control.pending == {Request.PAUSE} and job.control.live is not None
    job.control.live = replace(job.control.live, rate_factor=1.0)
    job.control.resume()
    job.log.wait_closed()
    assert job.end.outcome == "finished" and place.weights("a") == place.weights("here")
    events = [json.loads(line) for line in (place.lora() / "events.jsonl").read_text().splitlines()]
    steps = [event for event in events if event["event"] == "step"]
    assert [step["step"] for step in steps] == [1, 2, 3, 4] and events[-1]["event"] == "job_ended"
    assert [event.loss for event in job.log.since(0) if is_step(event)] == [step["loss"] for step in steps]
    assert not place.folders.running.exists() and runs_in_progress(place.folders) == []
    said = [event.text for event in job.log.since(0) if isinstance(event, jobs.Advice)]
    assert any(text.startswith("a is still attached as it was before this run.") for text in said)


def test_a_run_outlives_the_program_that_has_started_it_and_is_found_again(own, place):
    program = start_program(place)
    reader = event_file.EventReader(place.folders.running / "a", place.lora())
    while not any(map(is_step, reader.read())):
        assert program.poll() is None
        time.sleep(0.05)
    kill = program.kill if sys.platform == "win32" else lambda: os.killpg(program.pid, signal.SIGKILL)
    kill()
    program.wait()
    own.host.own_process = None  # started again without a model, as the portable app is
    own.engine.find_runs(own.session, own.host)
    job = own.session.latest("training")
    wait_for(job, is_step)
    assert own.session.uses_host_model is None and not own.host.uses
    assert runs_in_progress(place.folders) == ["a"] and job.result_name == "a"
    job.control.ask(Request.STOP)
    job.log.wait_closed()
    assert job.end.outcome == "stopped" and not place.folders.running.exists()


def test_on_windows_the_run_is_no_descendant_that_taskkill_would_end_and_has_no_window(own, monkeypatch):
    flags, popen = {"CREATE_NEW_PROCESS_GROUP": 1, "CREATE_NO_WINDOW": 2, "CREATE_BREAKAWAY_FROM_JOB": 4}, []
    for name, value in flags.items():
        monkeypatch.setattr(subprocess, name, value, raising=False)

    def start(command, creationflags, start=subprocess.Popen, **more):
        popen.append(creationflags)
        if creationflags & 4:
            raise OSError("the job object forbids it")
        return start(command, **more)

    monkeypatch.setattr(process_engine, "sys", SimpleNamespace(platform="win32", executable=sys.executable))
    monkeypatch.setattr(process_engine.subprocess, "Popen", start)
    monkeypatch.setattr(process_engine, "_watch_process", lambda number: psutil.Process(number).is_running)
    job = own.start()
    wait_for(job, is_step)
    running, descendants = processes_of(own.place), psutil.Process().children(recursive=True)
    assert running and not {*running} & {*descendants} and popen == [7, 3]
    job.log.wait_closed()
    assert job.end.outcome == "finished" and not own.place.folders.running.exists()


@pytest.mark.long
def test_a_resumed_run_shows_what_was_before(own, place):
    job = own.start(**LONG)
    wait_for(job, is_step)
    job.control.ask(Request.STOP)
    job.log.wait_closed()
    again = own.start(**{**LONG, "epochs": 41}, if_exists="continue")
    again.log.wait_closed()
    notes = [event.text for event in event_file.read_events(place.lora()) if isinstance(event, Note)]
    assert again.end.outcome == "finished" and any(text.startswith("Resuming from") for text in notes)
    plan = next(event for event in again.log.since(0) if isinstance(event, RunPlanned))
    assert [event.step for event in plan.earlier if is_step(event)] == [*range(1, plan.first_step + 1)]


@pytest.mark.long
def test_a_process_that_cannot_train_says_why(own, place):
    refused = own.start(optimizer="paged_adamw_8bit")
    refused.log.wait_closed()
    assert refused.end.text.startswith("Optimizer: paged_adamw_8bit needs") and not refused.end.details
    own.host.own_process = OwnProcess(Path(sys.executable), str(place.folders.models / "gone"))
    job = own.start()
    job.log.wait_closed()
    assert job.end.outcome == "failed" and "There is no model" in job.end.text
    assert not place.folders.running.exists()


def test_a_run_that_is_killed_says_so_and_not_what_it_printed(with_lora):
    running = with_lora.folders.running / "a"
    for events, text, details in (
        ("", "No such model.", "The process that trained 'a' has ended unexpectedly."),
        (event_file.event_line(Stage(text="Training")), KILLED, "No such model."),
    ):
        running.mkdir(parents=True)
        (running / "output.txt").write_text("No such model.\n")
        (running / event_file.EVENTS).write_text(events)
        ended = follow_to_end(jobs.Job("training", "a"), with_lora.lora(), with_lora.folders, lambda: False)
        assert (ended.outcome, ended.text, ended.details) == ("failed", text, details)


def test_a_worker_checks_and_answers_with_one_model_and_its_errors_arrive(own, place):
    report = own.engine.check(place.settings(), own.host, show=PreviewQuery(2))
    assert report.examples == 16 and len(report.shown) == 2 and report.free_memory  # the worker's, not the host's
    job = own.session.start(
        "answer",
        "Asking",
        own.host,
        lambda job: own.engine.answer(AnswerRequest("The", max_tokens=3), own.host, job),
    )
    job.log.wait_closed()
    assert job.end.outcome == "finished" and any(isinstance(event, Answer) for event in job.log.since(0))
    assert own.session.uses_host_model is None and not own.host.uses
    assert own.engine.layers(own.host)["q_proj"]
    with pytest.raises(SettingsError) as refusal:
        own.engine.check(place.settings(data=["gone.txt"], eval_data=["a.txt"], cutoff=10**6), own.host)
    assert refusal.value.problems
    own.engine.close()


def test_another_worker_unpacks_a_gguf_file_into_ram_to_merge_a_lora_into_it(own, monkeypatch):
    own.host.own_process, said = OwnProcess(Path("python"), "m.gguf"), []

    def start(target, folders, **variables):
        said.append((target.loading, variables))
        ends = {"ask": lambda *_: None, "is_alive": lambda: True, "close": lambda: said.append("closed")}
        return SimpleNamespace(target=target, jobs=0, **ends)

    monkeypatch.setattr(process_engine, "Worker", start)
    own.engine.layers(own.host)
    own.engine.merge(MergeRequest("a", "out"), own.host, None)
    own.engine.layers(own.host)
    assert said == [("auto", {}), ("bfloat16", {"CUDA_VISIBLE_DEVICES": ""}), "closed"]
    # So does a model in 4-bit; and no job is ended by a choice of another model.
    own.host.own_process = OwnProcess(Path("python"), "m", "4bit")
    own.engine.merge(MergeRequest("a", "out"), own.host, None)
    assert said[3:] == [("bfloat16", {"CUDA_VISIBLE_DEVICES": ""}), "closed"]
    own.engine._worker.jobs = 1
    with pytest.raises(BusyError, match="Another job uses a model now"):
        own.engine.layers(own.host)
    assert said[5:] == []


@pytest.mark.long
@pytest.mark.parametrize("kills", [int(os.environ.get("TRAINING_PRO_KILLS", "20"))])
def test_killed_at_random_moments_run_program_or_both_it_ends_with_the_same_bits(own, place, kills):
    place.train(**LONG, name="whole")
    rng, killed, asked = random.Random(kills), 0, 0
    while killed < kills:
        shutil.rmtree(place.lora(), ignore_errors=True)
        while not (ended := run_files.read_log(place.lora()).get("ended") == "finished"):
            program = start_program(place, *["newest"] * place.lora().exists())
            while not runs_in_progress(place.folders) and program.poll() is None:
                time.sleep(0.02)
            time.sleep(rng.uniform(0, 3))
            victims, killed = rng.choice(["run", "program", "both"]), killed + 1
            if asks := victims == "program" and runs_in_progress(place.folders) == ["a"]:
                before = len(requests_taken(place))
                with suppress(BusyError):  # it ends just now
                    send_request("a", "save", place.folders)
            for process in processes_of(place):
                is_run = "train" in process.cmdline()
                if victims == "both" or is_run == (victims == "run"):
                    with suppress(psutil.NoSuchProcess):
                        process.kill()
            program.wait()
            while runs_in_progress(place.folders):  # of a killed program: it goes on to its end
                time.sleep(0.05)
            wait_until_gone(place)
            if asks and (taken := len(requests_taken(place)) - before):
                asked += 1
                assert taken == 1
        assert ended and place.weights("a") == place.weights("whole")
    assert asked and not processes_of(place)


def requests_taken(place):
    events = event_file.EventReader(place.folders.running / "a", place.lora()).read()
    return [e for e in events if isinstance(e, Note) and e.text.startswith("Request from another program")]


def processes_of(place):
    found = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if any(str(place.folders.user_data) in word for word in process.cmdline()):
                found.append(process)
    return found


def wait_until_gone(place):
    end = time.monotonic() + 60
    while processes_of(place):
        assert time.monotonic() < end
        time.sleep(0.05)
