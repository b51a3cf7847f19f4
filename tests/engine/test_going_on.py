"""Stop, save and resume, and the fate of files that are already in the folder."""

from __future__ import annotations

import datetime
import os
import re
import shutil
import threading
import time
from dataclasses import replace

import pytest
from training_pro.core.errors import BusyError, SavingError, SettingsError
from training_pro.core.jobs import CheckpointSaved, Job, Note, Request, RunPlanned, Stage, Step
from training_pro.engine.saving import load_run_state
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records import folder as records
from training_pro.records.folder import LOG, STATE, loras
from training_pro.tests.engine import watching
from training_pro.tests.engine.watching import asking, at, break_down, events_of, read, steps_of, stopping_at
from training_pro.tests.tiny import make_workspace, read_tree, watched_job

LONG = {"epochs": 2, "dropout": 0.1, "learning_rate": 5e-3}
DISCARD = asking(Request.DISCARD)


@pytest.fixture(scope="module")
def trained_once(tmp_path_factory, tiny):
    """A workspace with a LONG run without interruption, and 'a', which was stopped after its second step."""
    workspace = make_workspace(tmp_path_factory.mktemp("whole"), tiny)
    workspace.train(name="whole", **LONG)
    workspace.train(name="a", job=stopping_at(2), **LONG)
    return workspace


@pytest.fixture(scope="module")
def whole(trained_once):
    return trained_once.lora("whole")


@pytest.fixture
def stopped(place, trained_once):
    """A workspace in which the run 'a' was stopped."""
    shutil.copytree(trained_once.lora("a"), place.lora("a"))
    return place


def weights(folder):
    return (folder / "adapter_model.safetensors").read_bytes()


def saved(job):
    return [event.folder.name for event in events_of(job, CheckpointSaved)]


def break_before_the_lora_is_saved(place, **settings):
    """As after a kill between the last checkpoint and the LoRA."""
    job = watched_job(lambda job, e: break_down(job) if getattr(e, "text", "") == "Saving the LoRA" else None)
    with pytest.raises(OSError, match="the power went"):
        place.train(job=job, **settings)


def test_a_stop_after_a_step_saves_a_checkpoint_and_the_lora(place):
    job = stopping_at(2)
    end = place.train(job=job, **LONG)
    assert (end.outcome, end.folder, saved(job)) == ("stopped", place.lora(), ["checkpoint-2"])
    assert end.text.startswith("'a' stopped at step 2 of 8. The smoothed loss is ")
    assert (loras.run_status(place.lora()), loras.has_lora(place.lora())) == ("stopped", True)
    assert read(place.lora() / LOG)["current_steps"] == 2
    assert place.weights() == weights(place.lora() / "checkpoint-2")


@pytest.mark.long
def test_checkpoints_by_steps_epochs_and_on_request_change_nothing_about_the_run(place, whole):
    job = at({1: asking(Request.CHECKPOINT)})
    assert place.train(job=job, save_every=3, **LONG).outcome == "finished"
    names = ["checkpoint-1-user", "checkpoint-3", "checkpoint-4-epoch-1", "checkpoint-6", "checkpoint-8-epoch-2"]
    assert saved(job) == names
    assert place.weights() == weights(whole)
    for checkpoint in loras.resumable_checkpoints(place.lora()):  # none repeats the log of all steps
        history = read(checkpoint.folder / "trainer_state.json")["log_history"]
        assert [entry["step"] for entry in history] == [checkpoint.step]


@pytest.mark.parametrize("step", [1, 5])
def test_a_resumed_run_ends_as_if_it_had_never_stopped(place, whole, step):
    place.train(name="parts", job=stopping_at(step), **LONG)
    place.train(name="parts", resume="newest", **LONG)
    assert place.weights("parts") == weights(whole)
    graphs = [read(folder / "training_graph.json") for folder in (place.lora("parts"), whole)]
    left, right = ([{k: v for k, v in entry.items() if k != "seconds"} for entry in graph] for graph in graphs)
    assert left == right


def test_a_crashed_run_resumes_from_its_newest_complete_checkpoint(place, whole):
    with pytest.raises(OSError, match="the power went"):
        place.train(name="parts", job=at({6: break_down}), **LONG)
    assert loras.run_status(place.lora("parts")) == "cut off" and not loras.has_lora(place.lora("parts"))
    half = place.lora("parts") / ".part" / "checkpoint-6"
    half.mkdir(parents=True)
    (half / "adapter_model.safetensors").write_bytes(b"half")
    job = Job("training", "a test")
    place.train(name="parts", job=job, resume="newest", **LONG)
    assert "Resuming from checkpoint-4-epoch-1 (step 4)." in watching.texts(job, Note)
    assert place.weights("parts") == weights(whole)
    assert not (place.lora("parts") / ".part").exists()


def test_a_run_that_broke_while_saving_its_lora_is_finished_from_a_checkpoint(place, whole):
    """From its last one without a step, also after a kill while an older one was reduced; or from a named one."""
    for name, resume in (("parts", "newest"), ("named", "checkpoint-4-epoch-1")):
        folder = shutil.copytree(whole, place.lora(name))
        for file in ("adapter_model.safetensors", "adapter_config.json", LOG):
            (folder / file).unlink()
        assert loras.run_status(folder) == "cut off"
        oldest = loras.resumable_checkpoints(folder)[0].folder / STATE
        if name == "parts":
            oldest.rename(f"{oldest}.part")
        job = Job("training", "a test")
        place.train(name=name, job=job, resume=resume, **LONG)
        assert steps_of(job) == ([] if name == "parts" else [5, 6, 7, 8])
        assert (weights(folder), loras.run_status(folder)) == (weights(whole), "finished")
        assert (folder / "report.html").is_file() and not list(folder.rglob("*.part"))


def test_a_finished_run_with_more_epochs_takes_the_rates_and_options_of_the_new_plan(place):
    place.train(epochs=1, lora_plus=4)
    job, changed = Job("training", "a test"), {"weight_decay": 0.5, "adam_beta1": 0.6, "adam_epsilon": 1e-6}
    with watching.optimizer_groups() as used:
        place.train(job=job, epochs=3, resume="newest", learning_rate=2e-3, lora_plus=4, **changed)
    (planned,) = events_of(job, RunPlanned)
    steps = events_of(job, Step)
    assert (planned.first_step, planned.steps, steps_of(job)) == (4, 12, list(range(5, 13)))
    assert [event.learning_rate for event in steps] == list(planned.rates[4:])
    assert steps[-1].learning_rate < 2e-3
    assert [min(g["lr"] for g in groups) for groups in used] == pytest.approx(planned.rates[4:], rel=1e-12)
    options = {(g["weight_decay"], g["betas"][0], g["eps"]) for groups in used for g in groups}
    assert options == {(0.5, 0.6, 1e-6)}
    graph = read(place.lora() / "training_graph.json")
    assert [entry["current_steps"] for entry in graph] == list(range(1, 13))


def test_what_is_changed_in_a_pause_is_in_the_checkpoint_that_is_saved_then(place):
    def watch(job, event):
        if isinstance(event, Step):
            job.control.ask(Request.PAUSE if event.step == 1 else Request.STOP)
        elif isinstance(event, Stage) and event.text.startswith("Paused"):
            job.control.live = replace(job.control.live, rate_factor=0.5)
            job.control.ask(Request.CHECKPOINT)
            threading.Timer(2, job.control.resume).start()

    place.train(job=watched_job(watch), save_every=1)  # saved again by the rule: it stays protected
    assert load_run_state(place.lora() / "checkpoint-1-user").steering.live["rate_factor"] == 0.5


def test_a_finished_run_goes_on_without_the_rule_that_ended_it_and_from_a_named_checkpoint(place):
    place.train(stop_at_epoch=1, epochs=2)
    still = place.train(resume="newest", stop_at_epoch=1, epochs=2, save_every=1)  # the rule holds
    assert still.text.startswith("'a' is finished: 4 of 8 steps")
    for resume in ("newest", "checkpoint-4-epoch-1"):
        job = Job("training", "a test")
        place.train(job=job, resume=resume, epochs=2)
        assert steps_of(job) == [5, 6, 7, 8]
    assert place.train(resume="newest", epochs=2).text.startswith("'a' is finished: 8 of 8 steps are done.")
    # Its last step had no checkpoint, so the LoRA itself went into the backup.
    (kept,) = place.lora().glob("Backup-*/adapter_model.safetensors")
    assert kept.read_bytes() == place.weights()


def test_a_wind_down_by_a_rule_that_is_lifted_ends_no_run(place):
    rule = {"stop_at_epoch": 0.5, "stop_how": "wind_down"}
    steps = int(re.findall(r"step (\d+) of 8", place.train(**LONG, **rule).text)[0])
    assert steps < 8 and place.train(resume="newest", **LONG, **rule).text.startswith("'a' is finished")
    job = Job("training", "a test")
    place.train(resume="newest", job=job, **LONG)
    assert steps_of(job) == [*range(steps + 1, 9)]


@pytest.mark.long
@pytest.mark.parametrize("ending", [{"epochs": 1.25}, {"stop_at_epoch": 0.5, "stop_how": "wind_down"}])
def test_a_run_that_was_killed_after_its_last_step_trains_no_further_step(place, ending):
    """And trains on if it is given more."""
    settings = {**LONG, **ending}
    end = place.train(name="whole", **settings)
    break_before_the_lora_is_saved(place, name="parts", **settings)
    job = Job("training", "a test")
    resumed = place.train(name="parts", job=job, if_exists="continue", **settings)
    assert steps_of(job) == []
    assert resumed.text.replace("parts", "whole") == end.text
    assert place.weights("parts") == place.weights("whole")
    if "epochs" in ending:
        job = Job("training", "a test")
        place.train(name="parts", job=job, resume="newest", **{**LONG, "max_steps": 7})
        assert steps_of(job) == [6, 7]


@pytest.mark.parametrize(
    ("named", "more"),
    [
        ("changed: rank (was 4 and is now 8)", {"rank": 8}),
        ("changed: seed (was 42 and is now 43)", {"seed": 43}),
        ("changed: data and slicing (Maximum context length (Cutoff) was 32 and is now 48)", {"cutoff": 48}),
        ("changed: data and slicing (the files, or how ", {"story": TRAINING_TEXT.replace("keeper", "warden")}),
        ("changed: model (was tiny and is now another)", {"model": "another"}),
        ("2 steps of 'a' are done, but the settings ask for 1. Increase Epochs (", {"max_steps": 1}),
    ],
)
def test_a_run_resumes_only_with_the_same_settings_texts_and_model(stopped, tmp_path, named, more):
    stopped.write("story.txt", more.pop("story", TRAINING_TEXT))
    if model := more.pop("model", ""):
        stopped.tiny = shutil.copytree(stopped.tiny, tmp_path / model)
    before = read_tree(stopped.folders.user_data)
    with pytest.raises(SavingError) as refusal:
        stopped.train(resume="newest", **{**LONG, **more})
    assert named in str(refusal.value)
    assert read_tree(stopped.folders.user_data) == before


def test_what_is_there_is_named_where_a_run_cannot_begin(with_lora):
    """A missing checkpoint, a finished run, a LoRA made elsewhere, and a link to another LoRA."""
    (with_lora.folders.loras / "link").symlink_to(with_lora.lora())
    shutil.copytree(with_lora.lora(), with_lora.lora("b"), ignore=shutil.ignore_patterns("checkpoint-*", LOG))
    before = read_tree(with_lora.folders.user_data)
    for error, message, more in (
        (SavingError, "'checkpoint-9' of 'a' does not exist. Available: c", {"resume": "checkpoint-9"}),
        (SettingsError, "Name: 'a' already exists: a finished LoRA. Under 'If the name exists' (--if-ex", {}),
        (SavingError, "is a LoRA without a checkpoint to resume from", {"name": "b", "resume": "newest"}),
        (SettingsError, "'link' is a link to 'a'. Enter 'a' or", {"name": "link", "if_exists": "replace"}),
    ):
        with pytest.raises(error, match=re.escape(message)):
            with_lora.train(epochs=2, **more)
        assert read_tree(with_lora.folders.user_data) == before
    with records.hold_run_lock("a", with_lora.folders), pytest.raises(BusyError):
        records.refuse_in_progress("link", with_lora.folders)


@pytest.mark.long
def test_replacing_keeps_a_backup_of_the_old_run(with_lora):
    (with_lora.lora() / "notes.txt").write_text("my own note", encoding="utf-8")
    before = read_tree(with_lora.lora())
    with pytest.raises(OSError, match="the power went"):  # it remains until the first step
        with_lora.train(if_exists="replace", job=watching.first(RunPlanned, break_down))
    assert read_tree(with_lora.lora()) == before
    today = f"Backup-{datetime.date.today().isoformat()}"
    with_lora.train(if_exists="replace", max_steps=1)
    assert read_tree(with_lora.lora() / today) == before
    assert not (with_lora.lora() / "notes.txt").exists()
    second = {p: b for p, b in read_tree(with_lora.lora()).items() if not p.startswith(today)}
    with_lora.train(if_exists="replace", max_steps=1)
    assert read_tree(with_lora.lora() / today) == before
    assert read_tree(with_lora.lora() / f"{today}-2") == second


def test_a_discarded_new_run_leaves_nothing(place):
    end = place.train(job=at({2: DISCARD}), **LONG)
    assert (end.outcome, end.text) == ("stopped", "'a' was discarded after step 2.")
    assert not place.lora().exists()


@pytest.mark.long
def test_discarding_a_replacement_restores_the_old_lora_even_if_the_clock_was_set_back(with_lora):
    """And also if the replacement failed before its first checkpoint, so that the old one is only in a backup."""
    with_lora.train(if_exists="replace", max_steps=1)
    (earlier,) = with_lora.lora().glob("Backup-*")
    os.utime(earlier, (time.time() + 1000, time.time() + 1000))
    before = read_tree(with_lora.lora())
    with_lora.train(if_exists="replace", job=at({2: DISCARD}), max_steps=4)
    assert read_tree(with_lora.lora()) == before
    with pytest.raises(OSError, match="the power went"):
        with_lora.train(if_exists="replace", job=at({2: break_down}), save_each_epoch=False, epochs=2)
    assert not loras.has_lora(with_lora.lora())
    with_lora.train(if_exists="continue", job=at({2: DISCARD}), **LONG)
    assert read_tree(with_lora.lora()) == before


def test_discarding_a_resume_keeps_the_earlier_run_with_all_its_checkpoints(place):
    """Its checkpoints, its best one and its backups, whatever came after them."""
    often = {**LONG, "epochs": 3, "keep_checkpoints": 1, "backup_minutes": 1e-6}
    with pytest.raises(OSError, match="the power went"):
        place.train(job=at({5: break_down}), **often)
    (place.lora() / "checkpoint-4-epoch-1").rename(place.lora() / "checkpoint-4-best")
    shutil.rmtree(place.lora() / ".part")
    before = read_tree(place.lora())
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [2, 3, 4]
    place.train(resume="newest", job=at({10: DISCARD}), **often)
    assert read_tree(place.lora()) == before


def test_a_checkpoint_is_saved_during_a_pause_and_the_run_resumes_from_it(place, whole):
    paused = []

    def watch(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.PAUSE)
        elif isinstance(event, Stage) and event.text.startswith("Paused"):
            job.control.ask(Request.CHECKPOINT)
            threading.Timer(2, job.control.resume).start()
        elif isinstance(event, CheckpointSaved):
            paused.append(job.control.pending)
            break_down(job)

    with pytest.raises(OSError, match="the power went"):
        place.train(name="parts", job=watched_job(watch), **LONG)
    assert paused == [{Request.PAUSE}]
    place.train(name="parts", resume="newest", **LONG)
    assert place.weights("parts") == weights(whole)


@pytest.mark.long
def test_a_pause_lasts_until_resumed_and_changes_nothing(place, whole):
    stopping = []

    def watch(job, event):
        if isinstance(event, Step) and event.step == 3:
            job.control.ask(Request.PAUSE)
        elif isinstance(event, Stage) and event.text.startswith("Paused"):
            act = job.control.ask if stopping else job.control.resume
            threading.Timer(0.2, act, stopping).start()

    job = watched_job(watch)
    place.train(name="paused", job=job, **LONG)
    said = [text for text in watching.texts(job, Note, Stage) if "fter step 3" in text]
    paused = "Paused after step 3 until you resume the run; the model stays in memory"
    assert said == [paused, "Resuming after step 3."]
    assert place.weights("paused") == weights(whole)
    stopping.append(Request.STOP)
    assert place.train(job=watched_job(watch), **LONG).outcome == "stopped"


@pytest.mark.parametrize("if_exists", ["ask", "replace", "new_name"])
def test_a_lora_that_another_program_finishes_while_this_one_prepares_is_not_lost(place, if_exists):
    job = watching.first(Stage, lambda job: place.train(learning_rate=5e-3, max_steps=1))
    if if_exists == "ask":
        with pytest.raises(SettingsError, match="'a' already exists: a finished LoRA"):
            place.train(job=job)
    else:
        place.train(job=job, if_exists=if_exists, max_steps=1)
    other = [path for path in place.folders.loras.rglob("training_parameters.json") if "0.005" in path.read_text()]
    assert [(path.parent / "adapter_model.safetensors").is_file() for path in other] == [True]
    assert len([*place.lora().glob("Backup-*")]) == (if_exists == "replace")
    assert place.lora("a-2").is_dir() is (if_exists == "new_name")
