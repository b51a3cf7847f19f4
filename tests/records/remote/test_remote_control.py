"""A run seen and controlled from another process: requests as files, and its progress."""

import threading
import time
from contextlib import ExitStack

import pytest
from training_pro.core.errors import BusyError, SavingError, SettingsError
from training_pro.core.jobs import Job, Note, Request, RunPlanned, Stage, progress_text
from training_pro.core.jobs.event_file import EVENTS
from training_pro.records.folder import RunFolder, hold_run_lock, runs_in_progress
from training_pro.records.remote import follow_run, read_progress, remote_control, send_request
from training_pro.tests.fakes import a_step, make_folders

ASKED = {"stop": {Request.STOP}, "resume": set(), "save": {Request.CHECKPOINT}, "wind-down": {Request.WIND_DOWN}}


@pytest.fixture
def folders(tmp_path):
    return make_folders(tmp_path)


def wait_for(condition):
    end = time.monotonic() + 300
    while not condition():
        assert time.monotonic() < end
        time.sleep(0.02)


def in_progress(name, job, folders):
    """A context in which the run goes on, and can be controlled."""
    context = ExitStack()
    context.enter_context(hold_run_lock(name, folders))
    context.enter_context(remote_control(RunFolder(folders.loras / name, folders.logs), job, folders))
    return context


@pytest.mark.parametrize("request_name", ASKED)
def test_a_request_reaches_the_run_and_is_taken_once(folders, request_name):
    job = Job("training", "a test")
    if request_name == "resume":
        job.control.ask(Request.PAUSE)
    with in_progress("a", job, folders):
        request = send_request("a", request_name, folders)
        wait_for(lambda: not request.exists())
        wait_for(lambda: any(isinstance(event, Note) for event in job.log.since(0)))
    assert job.control.pending == ASKED[request_name]
    notes = [event.text for event in job.log.since(0) if isinstance(event, Note)]
    assert notes == [f"Request from another program: {request_name}."]


def test_what_was_asked_before_the_run_had_a_process_reaches_it(folders):
    tab, run, ended = Job("training", "a test"), Job("training", "a test"), threading.Event()
    tab.control.ask(Request.STOP)
    tab.control.extend(2.0)
    with in_progress("a", run, folders):
        follow = (folders.loras / "a", tab, folders, lambda: not ended.is_set(), 0.0)
        following = threading.Thread(target=follow_run, args=follow)
        following.start()
        wait_for(lambda: run.control.pending == {Request.STOP, Request.MORE_EPOCHS})
        ended.set()
        following.join()
    assert run.control.take_epochs() == 2.0


def test_how_far_a_run_is_can_be_read_while_it_is_in_progress(folders):
    job = Job("training", "a test")
    with in_progress("a", job, folders):
        assert runs_in_progress(folders) == ["a"]
        plan = {"model": "toy", "steps": 8, "steps_per_epoch": 4, "first_step": 0, "rates": (), "settings": {}}
        for event in (RunPlanned(name="a", **plan), a_step(1), a_step(2)):
            job.log.append(event)
        wait_for(lambda: read_progress("a", folders).step == 2)
        progress = read_progress("a", folders)
        assert (progress.model, progress.steps, progress.loss, progress.paused) == ("toy", 8, 2.5, False)
        assert progress_text(progress) == "step 2 of 8, epoch 0.50, smoothed loss 2.2500, 3 s left"
        job.control.ask(Request.PAUSE)
        wait_for(lambda: read_progress("a", folders).paused)
        assert progress_text(read_progress("a", folders)).endswith(", paused")
        job.log.append(Stage(text="Preparing the model"))  # resumed after a crash
        wait_for(lambda: read_progress("a", folders).stage)
        assert not read_progress("a", folders).paused
    assert runs_in_progress(folders) == []
    job.log.close()
    assert not list(folders.running.glob("*")) and not list(folders.training.glob("a.*"))


def test_only_a_run_in_progress_can_be_told_something_by_its_name(folders):
    with pytest.raises(BusyError, match="'a' is not being trained now"):
        send_request("a", "stop", folders)
    with pytest.raises(SettingsError, match=r"Unknown request 'jump'\. Choose one of: stop, pause"):
        send_request("a", "jump", folders)
    for name in ("../a", "/etc/passwd", "a/b", "", ".", "con", "x" * 300):
        with pytest.raises((BusyError, SavingError)):
            send_request(name, "stop", folders)
    assert not list(folders.training.glob("a.*")) and not list(folders.user_data.rglob("*.request"))
    (folders.running / "a").mkdir(parents=True)
    for damaged in ("{", "[]", '{"event": "step", "step": -3, "loss": "x"}\n', '{"event": 5}\n{"event": "new"}\n'):
        (folders.running / "a" / EVENTS).write_text(damaged)
        assert progress_text(read_progress("a", folders)) == "starting"


def test_what_a_run_that_crashed_has_left_does_not_reach_the_next_one(folders):
    (folders.running / "a").mkdir(parents=True)
    for name in ("1.request", "2.request.part", EVENTS):
        (folders.running / "a" / name).write_text('{"request": "STOP"}')
    job = Job("training", "a test")
    with in_progress("a", job, folders):
        send_request("a", "save", folders)
        wait_for(lambda: job.control.asked(Request.CHECKPOINT))
    assert not job.control.asked(Request.STOP)
    job.log.close()
    assert not list(folders.running.glob("*")) and not list(folders.training.glob("a.*"))
