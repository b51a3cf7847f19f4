"""Killed before any file operation: no LoRA is lost, the run goes on from where it began, nothing is left over.

A kill leaves the files as they are at that moment. So each job runs once, a picture of the folder is taken before
every file operation, and each picture is then opened as the next program would find it.
"""

from __future__ import annotations

import os
import sys
import threading
import time
from contextlib import contextmanager

import pytest
from training_pro.core.engine import GgufRequest, MergeRequest
from training_pro.core.jobs import CheckpointSaved, Job, Request, Session, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import standalone_folders
from training_pro.records.folder import inventory, loras
from training_pro.records.queue import QueueRunner
from training_pro.records.report import write_missing_report
from training_pro.tests.tiny import QUICK, Workspace, read_tree, watched_job

RUN = {"epochs": 1, "save_every": 2, "save_each_epoch": False}
OPERATIONS = {"os.rename", "os.remove", "os.mkdir", "os.rmdir", "open"}
WRITES = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WEIGHTS = "adapter_model.safetensors"
watching = []


def _audit(event, args):
    if watching and event in OPERATIONS and isinstance(args[0], (str, os.PathLike)):
        root, take = watching[0]
        if os.fspath(args[0]).startswith(root) and (event != "open" or (args[2] or 0) & WRITES):
            watching.clear()  # taking a picture is no operation of the job
            take()
            watching.append((root, take))


sys.addaudithook(_audit)


@contextmanager
def pictures_of(place):
    """Yield the list of the different states of the work folder, one before each file operation."""
    pictures = []

    def take():
        picture = {path: data for path, data in read_tree(place.folders.user_data).items() if ".lock" not in path}
        if not pictures or picture != pictures[-1]:
            pictures.append(picture)

    watching.append((str(place.folders.user_data), take))
    try:
        yield pictures
    finally:
        watching.clear()
        take()


def crash_at(event, **run):
    def watch(job, seen):
        if isinstance(seen, event):
            raise OSError("the power went")

    def act(place):
        with pytest.raises(OSError, match="the power went"):
            place.train(job=watched_job(watch), **{**RUN, **run})

    return act


def stop(place):
    """A run that is stopped after its first step."""
    watch = watched_job(lambda job, event: job.control.ask(Request.STOP) if isinstance(event, Step) else None)
    place.train(job=watch, **RUN)


def train(**run):
    return lambda place: place.train(**{**RUN, **run})


def old_lora(place):
    place.train(**RUN, learning_rate=3e-3)


def to_crashed_run(act):
    return lambda place: act(inventory.find_crashed_runs(place.folders)[0], place.folders)


def merge(place):
    PeftEngine().merge(MergeRequest("a", str(place.folders.models / "merged"), ""), place.host(), Job("merge", ""))


def export(place):
    PeftEngine().export_gguf(GgufRequest("a", "", ""), place.host())


def run_queue(place):
    runner = QueueRunner(place.host(), PeftEngine(), Session())
    runner.recover()
    if not place.lora().exists() and not runner.queue.waiting:
        runner.add({**QUICK, **RUN})
    if runner.queue.waiting:
        runner.start()
    while runner.queue.waiting or runner.queue.begun:
        time.sleep(0.01)
    for thread in threading.enumerate():  # the lock of a run goes just after the run has left the queue
        if thread.name.startswith("Training "):
            thread.join()
    if inventory.find_crashed_runs(place.folders):  # a run that had begun is left to the user
        place.train(resume="newest", **RUN)


# What was there before, what is killed, and what the user does next if it did not get to its end.
JOBS = {
    "new": ([], train(), train(resume="newest")),
    "replace": ([old_lora], train(if_exists="replace"), train(if_exists="replace")),
    "continue": ([old_lora], train(if_exists="continue"), train(if_exists="continue")),
    "resume": ([stop], train(resume="newest"), None),
    "discard": ([old_lora, crash_at(Step, if_exists="replace")], to_crashed_run(inventory.discard_run), None),
    "discard after a resume": (
        [stop, crash_at(CheckpointSaved, resume="newest")],
        to_crashed_run(inventory.discard_run),
        None,
    ),
    "keep": ([crash_at(CheckpointSaved)], to_crashed_run(inventory.keep_run), None),
    "merge": ([old_lora], merge, merge),
    "gguf": ([old_lora], export, export),
    "queue": ([], run_queue, run_queue),
}


def files_of(place):
    """What matters of the work folder: weights, states and exports; times and reports differ from run to run."""
    names = (WEIGHTS, "adapter_config.json", "model.safetensors", "a.gguf", "optimizer.pt")
    tree = read_tree(place.folders.user_data)
    return {path: data for path, data in tree.items() if path.endswith(names) and "Backup-" not in path}


def lora_files(folder):
    return {path.name: path.read_bytes() for path in loras.weight_files(folder)} if folder.is_dir() else {}


def refuse_lost_lora(place, whole):
    """A LoRA that was whole before is in its place, or in one backup that the list of runs names, or replaced."""
    backups = [part.folder for part in inventory.read_entry(place.lora(), place.folders).parts]
    assert any(lora_files(folder) in whole for folder in (place.lora(), *backups))


EACH = [pytest.param(job, 1, marks=pytest.mark.long) for job in JOBS]


@pytest.mark.parametrize(("job", "every"), [*((job, 20) for job in ("new", "replace", "discard", "queue")), *EACH])
def test_killed_before_any_file_operation(tmp_path, place, job, every):
    before, act, next_act = JOBS[job]
    for prepare in before:
        prepare(place)
    old = lora_files(place.lora()) if before and loras.run_status(place.lora()) != "cut off" else {}
    with pictures_of(place) as pictures:
        act(place)
    expected, whole = files_of(place), (old, lora_files(place.lora()))
    for number in range(len(pictures) - 1, -1, -every):
        opened = Workspace(standalone_folders(tmp_path / f"picture-{number}"), place.tiny)
        for path, data in pictures[number].items():
            target = opened.folders.user_data / path
            (target if path.endswith("/") else target.parent).mkdir(parents=True, exist_ok=True)
            if not path.endswith("/"):
                target.write_bytes(data)
        crashed = inventory.find_crashed_runs(opened.folders)  # as a page does that is opened
        if old:
            refuse_lost_lora(opened, whole)
        if files_of(opened) != expected or crashed:
            (next_act or act)(opened)
        assert files_of(opened) == expected, number
        write_missing_report(opened.lora(), opened.folders)  # as the Runs tab does for a run that is chosen
        left = [path for path in read_tree(opened.folders.loras) if ".part" in path or ".journal" in path]
        assert left == [], number
