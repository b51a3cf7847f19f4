"""`status` and `tell` as a user meets them."""

from __future__ import annotations

import json
from threading import Event, Thread

import pytest
from training_pro.commands.main import main
from training_pro.core.jobs import Job, Request, Stage
from training_pro.hosts.standalone import standalone_folders
from training_pro.records.remote import read_progress
from training_pro.tests.records.on_disk import FINISHED, write_files
from training_pro.tests.records.remote.test_remote_control import in_progress


@pytest.fixture
def folders(tmp_path):
    return standalone_folders(tmp_path)


@pytest.fixture
def call(folders, capsys):
    def call(*words):
        code = main([*words, "--user-data", str(folders.user_data)])
        out, err = capsys.readouterr()
        return code, out, "\n".join(err.splitlines()[1:])

    return call


@pytest.fixture
def night(folders):
    """A run that is in progress."""
    job = Job("training", "a test")
    job.log.append(Stage(text="Preparing the data"))
    with in_progress("night", job, folders):
        while not read_progress("night", folders).stage:
            Event().wait(0.01)
        yield job


def test_nothing_is_in_progress_and_a_name_that_does_not_exist_is_a_sentence(call):
    assert call("status") == (0, "", "No run is in progress.")
    code, out, err = call("status", "nobody")
    assert (code, out) == (1, "") and err.startswith("There is no LoRA 'nobody'")
    code, _, err = call("tell", "story", "stop")
    assert code == 1 and err == "'story' is not being trained now, so it can't receive requests."
    with pytest.raises(SystemExit) as ended:
        call("tell", "story", "jump")
    assert ended.value.code == 2


def test_a_run_in_progress_and_one_that_is_finished(call, folders, night):
    write_files(folders.loras, "story", FINISHED)
    code, out, err = call("status")
    assert (code, err) == (0, "") and out.startswith("night: Preparing the data")
    shown = json.loads(call("status", "night", "--json")[1])
    assert (shown["name"], shown["status"], shown["step"]) == ("night", "in progress", 0)
    assert call("status", "story")[1] == "story: finished at step 8 of 8\n"
    assert json.loads(call("status", "story", "--json")[1])["status"] == "finished"


def test_telling_says_what_the_run_will_do_and_two_requests_at_once_both_arrive(call, folders, night):
    assert call("tell", "night", "save") == (0, "", "night saves a checkpoint after this step.")
    place = ["--user-data", str(folders.user_data)]
    others = [Thread(target=main, args=[["tell", "night", word, *place]]) for word in ("evaluate", "sample")]
    for other in others:
        other.start()
    for other in others:
        other.join()
    assert night.control.pending == {Request.CHECKPOINT, Request.EVALUATE, Request.SAMPLE}
    night.control.ask(Request.PAUSE)
    while not read_progress("night", folders).paused:
        Event().wait(0.01)
    assert call("tell", "night", "sample")[2].endswith(" It is paused, so this waits until you tell it to resume.")
    assert "paused" not in call("tell", "night", "save")[2]
