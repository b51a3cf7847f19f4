"""Stop, save and resume, and the fate of files that are already in the folder."""

from __future__ import annotations

import datetime
import json
import os
import re
import shutil
import time
from pathlib import Path

import pytest
import torch
from training_pro.core.errors import BusyError, SavingError, SettingsError
from training_pro.core.jobs import CheckpointSaved, Job, Note, Request, RunPlanned, Stage, Step
from training_pro.engine.training import run
from training_pro.hosts.standalone import standalone_folders
from training_pro.hosts.tiny import TRAINING_TEXT
from training_pro.records.folder import LOG, STATE, hold_run_lock, loras, refuse_in_progress, with_final_name
from training_pro.records.folder.crashed_runs import find_crashed_runs
from training_pro.tests.tiny import Workspace, read_tree, watched_job

LONG = {"epochs": 2, "dropout": 0.1, "learning_rate": 5e-3}


@pytest.fixture(scope="module")
def whole(tmp_path_factory, tiny):
    """The folder of a LONG run without interruption."""
    workspace = Workspace(standalone_folders(tmp_path_factory.mktemp("whole") / "user_data"), tiny)
    workspace.write("story.txt", TRAINING_TEXT)
    workspace.train(name="whole", **LONG)
    return workspace.lora("whole")


def weights(folder):
    return (folder / "adapter_model.safetensors").read_bytes()


def read(path):
    return json.loads(path.read_text(encoding="utf-8"))


def at(step, do):
    """Return a job that calls `do` with itself after a step."""

    def watch(job, event):
        if isinstance(event, Step) and event.step == step:
            do(job)

    return watched_job(watch)


def stopping_at(step):
    return at(step, lambda job: job.control.ask(Request.STOP))


def break_down(*_):
    raise OSError("the power went")


def breaking_at(step):
    return at(step, break_down)


def saved(job):
    return [(e.step, e.reason, e.folder.name) for e in job.log.since(0) if isinstance(e, CheckpointSaved)]


def notes(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Note)]


def test_a_stop_after_a_step_saves_a_checkpoint_and_the_lora(place):
    job = stopping_at(2)
    end = place.train(job=job, **LONG)
    assert (end.outcome, end.folder) == ("stopped", place.lora())
    assert end.text.startswith("'a' stopped at step 2 of 8. The smoothed loss is ")
    assert saved(job) == [(2, "", "checkpoint-2")]
    assert (loras.run_status(place.lora()), loras.has_lora(place.lora())) == ("stopped", True)
    assert read(place.lora() / "training_log.json")["current_steps"] == 2
    assert place.weights() == (place.lora() / "checkpoint-2" / "adapter_model.safetensors").read_bytes()


def test_a_checkpoint_is_saved_on_request(place):
    job = at(1, lambda job: job.control.ask(Request.CHECKPOINT))
    assert place.train(job=job, **LONG).outcome == "finished"
    assert saved(job) == [
        (1, "user", "checkpoint-1-user"),
        (4, "epoch-1", "checkpoint-4-epoch-1"),
        (8, "epoch-2", "checkpoint-8-epoch-2"),
    ]
    assert [c.step for c in loras.checkpoints(place.lora())] == [1, 4, 8]


def test_saving_changes_nothing_about_the_run(place, whole):
    place.train(name="busy", save_every=1, job=at(2, lambda job: job.control.ask(Request.CHECKPOINT)), **LONG)
    assert place.weights("busy") == weights(whole)


def test_a_checkpoint_repeats_nothing_of_the_log_of_the_steps(place):
    place.train(save_every=2)
    checkpoints = loras.resumable_checkpoints(place.lora())
    assert checkpoints
    for checkpoint in checkpoints:
        state = json.loads((checkpoint.folder / "trainer_state.json").read_text(encoding="utf-8"))
        assert [entry["step"] for entry in state["log_history"]] == [checkpoint.step]


def test_checkpoints_every_n_steps(place):
    job = Job("training", "a test")
    place.train(job=job, save_every=3, save_each_epoch=False, **LONG)
    assert saved(job) == [(3, "", "checkpoint-3"), (6, "", "checkpoint-6")]


@pytest.mark.parametrize("step", [1, 3, 5])
def test_a_resumed_run_ends_as_if_it_had_never_stopped(place, whole, step):
    place.train(name="parts", job=stopping_at(step), **LONG)
    place.train(name="parts", resume="newest", **LONG)
    assert place.weights("parts") == weights(whole)
    graphs = [read(folder / "training_graph.json") for folder in (place.lora("parts"), whole)]
    for graph in graphs:
        for entry in graph:
            del entry["seconds"]
    assert graphs[0] == graphs[1]
    logs = [read(folder / "training_log.json") for folder in (place.lora("parts"), whole)]
    for key in ("ended_at", "training_time", "memory_at_most", "speeds"):
        for log in logs:
            del log[key]
    assert logs[0] == logs[1]


def test_also_in_the_middle_of_an_accumulated_epoch(place):
    more = {"batch_size": 1, "accumulation": 3, **LONG}
    place.train(name="whole", **more)
    place.train(name="parts", job=stopping_at(7), **more)
    place.train(name="parts", if_exists="continue", **more)
    assert place.weights("parts") == place.weights("whole")


def test_a_crashed_run_resumes_from_its_newest_checkpoint(place, whole):
    with pytest.raises(OSError, match="the power went"):
        place.train(name="parts", job=breaking_at(6), **LONG)
    assert loras.run_status(place.lora("parts")) == "cut off"
    assert not loras.has_lora(place.lora("parts"))
    job = Job("training", "a test")
    place.train(name="parts", job=job, resume="newest", **LONG)
    assert "Resuming from checkpoint-4-epoch-1 (step 4)." in notes(job)
    assert place.weights("parts") == weights(whole)


def test_a_run_that_broke_while_saving_its_lora_is_finished_from_its_last_checkpoint(place, whole):
    shutil.copytree(whole, place.lora("parts"))
    for name in ("adapter_model.safetensors", "adapter_config.json", "training_log.json"):
        (place.lora("parts") / name).unlink()
    assert loras.run_status(place.lora("parts")) == "cut off"
    oldest = loras.resumable_checkpoints(place.lora("parts"))[0].folder / "run_state.json"
    oldest.rename(f"{oldest}.part")  # a kill while it was reduced to its LoRA
    assert place.train(name="parts", resume="newest", **LONG).outcome == "finished"
    assert place.weights("parts") == weights(whole)
    assert loras.run_status(place.lora("parts")) == "finished"
    assert not list(place.lora("parts").rglob("*.part"))


def test_a_run_resumes_from_a_named_checkpoint(place, whole):
    shutil.copytree(whole, place.lora())
    (place.lora() / "training_log.json").unlink()
    (place.lora() / "adapter_model.safetensors").unlink()
    shutil.rmtree(place.lora() / "checkpoint-8-epoch-2")
    place.train(resume=str(place.lora() / "checkpoint-4-epoch-1"), **LONG)
    assert place.weights() == weights(whole)


@pytest.mark.parametrize("more", [{}, {"save_each_epoch": False}, {"epochs": 1.5}])
def test_a_finished_run_says_so_and_changes_nothing(place, more):
    place.train(**more)
    before = read_tree(place.folders.user_data)
    end = place.train(**more, resume="newest")
    assert end.outcome == "finished"
    assert end.text.startswith("'a' is finished: ")
    assert read_tree(place.folders.user_data) == before


def test_a_finished_run_with_more_epochs_takes_the_rates_of_the_new_plan(place):
    place.train(epochs=1)
    job = Job("training", "a test")
    place.train(job=job, epochs=3, resume="newest", learning_rate=2e-3)
    (planned,) = [event for event in job.log.since(0) if isinstance(event, RunPlanned)]
    steps = [event for event in job.log.since(0) if isinstance(event, Step)]
    assert (planned.first_step, planned.steps) == (4, 12)
    assert [event.step for event in steps] == list(range(5, 13))
    assert [event.learning_rate for event in steps] == list(planned.rates[4:])
    assert steps[-1].learning_rate < 2e-3
    graph = read(place.lora() / "training_graph.json")
    assert [entry["current_steps"] for entry in graph] == list(range(1, 13))


@pytest.mark.parametrize(("first", "then"), [({"max_steps": 3}, 5), ({"epochs": 1.5}, 8)])
def test_a_run_that_ended_within_an_epoch_resumes_with_more_steps(place, first, then):
    place.train(name="short", **first)
    ended = read(place.lora("short") / "training_graph.json")[-1]["current_steps"]
    seen = []
    job = watched_job(lambda job, event: seen.append(event.step) if isinstance(event, Step) else None)
    place.train(name="short", job=job, resume="newest", max_steps=then)
    assert seen == list(range(ended + 1, then + 1))


def train_until_the_lora_is_saved(place, monkeypatch, **settings):
    """As after a kill between the last checkpoint and the LoRA."""
    with monkeypatch.context() as patch, pytest.raises(OSError, match="the power went"):
        patch.setattr(run, "_save", break_down)
        place.train(**settings)


@pytest.mark.parametrize(
    "ending",
    [{"epochs": 1.25}, {"max_steps": 3}, {"stop_at_epoch": 0.5}, {"stop_at_epoch": 0.5, "stop_how": "wind_down"}],
    ids=["within an epoch", "max steps", "a rule", "a rule that winds down"],
)
def test_a_run_that_was_killed_after_its_last_step_trains_no_further_step(place, monkeypatch, ending):
    settings = {**LONG, **ending}
    end = place.train(name="whole", **settings)
    train_until_the_lora_is_saved(place, monkeypatch, name="parts", **settings)
    job = Job("training", "a test")
    resumed = place.train(name="parts", job=job, if_exists="continue", **settings)
    assert not [event for event in job.log.since(0) if isinstance(event, Step)]
    assert resumed.text.replace("parts", "whole") == end.text
    assert place.weights("parts") == place.weights("whole")


def test_a_run_that_a_rule_ended_trains_on_if_the_rule_is_changed(place, monkeypatch):
    train_until_the_lora_is_saved(place, monkeypatch, stop_at_epoch=0.5, **LONG)
    end = place.train(if_exists="continue", stop_at_epoch=1.5, **LONG)
    assert end.text.startswith("'a' finished at step 6 of 8 because epoch 1.5 is done")


def test_a_run_resumed_with_a_plan_that_it_has_passed_is_saved_as_it_is(place):
    place.train(job=stopping_at(6), **LONG)
    before = place.weights()
    end = place.train(if_exists="continue", **{**LONG, "epochs": 1.25})
    assert end.text.startswith("'a' finished at step 6 of 5. ")
    assert place.weights() == before
    assert read(place.lora() / "training_parameters.json")["epochs"] == 1.25


def test_the_optimizer_uses_the_rates_of_the_new_plan(place, monkeypatch):
    from training_pro.engine.training.trainer import RunTrainer

    place.train(epochs=1)
    used, step = [], RunTrainer.training_step

    def spy(self, *args, **more):
        used.append(self.optimizer.param_groups[0]["lr"])
        return step(self, *args, **more)

    monkeypatch.setattr(RunTrainer, "training_step", spy)
    job = Job("training", "a test")
    place.train(job=job, epochs=3, resume="newest", learning_rate=2e-3)
    (planned,) = [event for event in job.log.since(0) if isinstance(event, RunPlanned)]
    assert used == pytest.approx(planned.rates[4:], rel=1e-12)


def test_the_optimizer_uses_the_settings_of_the_resumed_run(place, monkeypatch):
    from training_pro.engine.training.trainer import RunTrainer

    place.train(job=stopping_at(2), lora_plus=4, **LONG)
    used, step = [], RunTrainer.training_step

    def watch(trainer, *args):
        used.extend(dict(group) for group in trainer.optimizer.param_groups if group["params"])
        return step(trainer, *args)

    monkeypatch.setattr(RunTrainer, "training_step", watch)
    changed = {"weight_decay": 0.5, "adam_beta1": 0.6, "adam_beta2": 0.7, "adam_epsilon": 1e-6}
    place.train(if_exists="continue", lora_plus=4, **changed, **LONG)
    assert {(group["weight_decay"], group["betas"], group["eps"]) for group in used} == {(0.5, (0.6, 0.7), 1e-6)}


def test_a_resume_without_checkpoints_starts_over_with_a_note(place):
    job = Job("training", "a test")
    assert place.train(job=job, resume="newest").outcome == "finished"
    notes = [event.text for event in job.log.since(0) if isinstance(event, Note)]
    assert "There is nothing to resume for 'a', so the run starts from the beginning." in notes


def test_changed_texts_are_named(place):
    place.train(job=stopping_at(1), **LONG)
    place.write("story.txt", TRAINING_TEXT.replace("keeper", "warden"))
    with pytest.raises(SavingError, match=r"data and slicing \(the files, or how .* have changed\)"):
        place.train(resume="newest", **LONG)


@pytest.mark.parametrize(
    ("named", "more"),
    [
        ("rank (was 4 and is now 8)", {"rank": 8}),
        ("alpha (was 8.0 and is now 64.0)", {"alpha": 64}),
        ("rslora (was False and is now True)", {"rslora": True}),
        ("lora_plus (was 1.0 and is now 16.0)", {"lora_plus": 16}),
        ("head_rate (was 1.0 and is now 0.1)", {"head_rate": 0.1}),
        ("targets (was all-linear and is now q-v)", {"targets": "q-v"}),
        ("batch_size (was 4 and is now 2)", {"batch_size": 2}),
        ("seed (was 42 and is now 43)", {"seed": 43}),
        ("accumulation (was 1 and is now 2)", {"accumulation": 2}),
        ("data and slicing (Maximum context length (Cutoff) was 32 and is now 48)", {"cutoff": 48}),
        ("data and slicing (Dataset was ['story.txt'] and is now ['other.txt'])", {"data": ["other.txt"]}),
    ],
)
def test_a_run_resumes_only_with_the_same_settings(place, named, more):
    place.write("other.txt", "Something else altogether. " * 60)
    place.train(job=stopping_at(1), **LONG)
    before = read_tree(place.folders.user_data)
    with pytest.raises(SavingError) as refusal:
        place.train(resume="newest", **{**LONG, **more})
    assert str(refusal.value).startswith("The run can't resume from checkpoint-1, because something has changed: ")
    assert named in str(refusal.value)
    assert read_tree(place.folders.user_data) == before


def test_settings_missing_in_an_old_checkpoint_come_from_its_parameters(place, whole):
    place.train(job=stopping_at(2), name="whole", **LONG)
    state = place.lora("whole") / "checkpoint-2" / STATE
    kept = read(state)
    for key in ("alpha", "lora_plus"):
        del kept["unchangeable"][key]
    state.write_text(json.dumps(kept), encoding="utf-8")
    optimizer = torch.load(state.with_name("optimizer.pt"))
    for group in optimizer["param_groups"]:
        del group["share"]
    torch.save(optimizer, state.with_name("optimizer.pt"))
    for more, message in (
        ({"alpha": 64}, "alpha (was 8.0 and is now 64.0)"),
        ({"lora_plus": 4}, "lora_plus (was 1.0"),
    ):
        with pytest.raises(SavingError, match=re.escape(message)):
            place.train(name="whole", resume="newest", **{**LONG, **more})
    place.train(name="whole", resume="newest", **LONG)
    assert weights(place.lora("whole")) == weights(whole)


def test_another_model_is_refused_by_name(place, tmp_path):
    place.train(job=stopping_at(1), **LONG)
    place.tiny = shutil.copytree(place.tiny, tmp_path / "another")
    with pytest.raises(SavingError, match=r"something has changed: model \(was tiny and is now another\)"):
        place.train(resume="newest", **LONG)


def test_a_missing_checkpoint_is_named_with_the_existing_ones(place):
    place.train()
    with pytest.raises(SavingError) as refusal:
        place.train(resume="checkpoint-9", epochs=2)
    assert (
        str(refusal.value)
        == "The checkpoint 'checkpoint-9' of 'a' does not exist. Available: checkpoint-4-epoch-1."
    )


def test_by_default_an_existing_run_is_refused_by_name(with_lora):
    before = read_tree(with_lora.folders.user_data)
    with pytest.raises(SettingsError) as refusal:
        with_lora.train()
    assert str(refusal.value) == (
        "Name: 'a' already exists: a finished LoRA. Under 'If the name exists' (--if-exists), choose whether to "
        "continue its training, replace it (a backup is kept), or use a new name."
    )
    assert read_tree(with_lora.folders.user_data) == before


def test_replacing_keeps_a_backup_of_the_old_run(with_lora):
    (with_lora.lora() / "notes.txt").write_text("my own note", encoding="utf-8")
    before = read_tree(with_lora.lora())
    today = f"Backup-{datetime.date.today().isoformat()}"
    with_lora.train(if_exists="replace", seed=7)
    assert read_tree(with_lora.lora() / today) == before
    assert not (with_lora.lora() / "notes.txt").exists()
    second = {p: b for p, b in read_tree(with_lora.lora()).items() if not p.startswith(today)}
    with_lora.train(if_exists="replace", seed=8)
    assert read_tree(with_lora.lora() / today) == before
    assert read_tree(with_lora.lora() / f"{today}-2") == second


def test_the_old_run_remains_until_the_first_step(with_lora):
    before = read_tree(with_lora.lora())
    with pytest.raises(OSError, match="the power went"):
        with_lora.train(if_exists="replace", job=first_event_of(RunPlanned, breaking))
    assert read_tree(with_lora.lora()) == before


def breaking(job):
    raise OSError("the power went")


def first_event_of(kind, do):
    return watched_job(lambda job, event: do(job) if isinstance(event, kind) else None)


def test_a_new_name_is_the_first_free_one(with_lora):
    before = read_tree(with_lora.lora())
    (with_lora.folders.loras / "a-2").mkdir()
    end = with_lora.train(if_exists="new_name")
    assert end.folder == with_lora.lora("a-3")
    assert json.loads((end.folder / "training_parameters.json").read_text(encoding="utf-8"))["name"] == "a-3"
    assert read_tree(with_lora.lora()) == before


@pytest.mark.parametrize(("if_exists", "name"), [("new_name", "a-2"), ("replace", "a"), ("ask", "a")])
def test_a_run_logs_its_final_name(with_lora, if_exists, name):
    asked = with_lora.settings(if_exists=if_exists)
    assert with_final_name(asked, with_lora.folders).what.name == name
    assert with_final_name(with_lora.settings(name="b", if_exists=if_exists), with_lora.folders).what.name == "b"


def test_nothing_is_written_before_the_first_step(place):
    seen = []

    def watch(job, event):
        seen.append((type(event).__name__, sorted(place.folders.loras.glob("*"))))

    place.train(job=watched_job(watch))
    before = [there for name, there in seen[: [name for name, _ in seen].index("Step")]]
    assert len(before) >= 6
    assert before == [[]] * len(before)
    assert seen[len(before)] == ("Step", [place.lora()])


def test_a_foreign_lora_is_not_overwritten_by_a_resume(with_lora):
    for name in ("training_log.json", "checkpoint-4-epoch-1"):
        path = with_lora.lora() / name
        shutil.rmtree(path) if path.is_dir() else path.unlink()
    before = read_tree(with_lora.folders.user_data)
    with pytest.raises(SavingError, match="is a LoRA without a checkpoint to resume from"):
        with_lora.train(resume="newest")
    assert read_tree(with_lora.folders.user_data) == before


def test_a_half_written_checkpoint_does_not_count(place, whole):
    with pytest.raises(OSError, match="the power went"):
        place.train(name="parts", job=breaking_at(6), **LONG)
    half = place.lora("parts") / ".part" / "checkpoint-6"
    half.mkdir(parents=True)
    (half / "adapter_model.safetensors").write_bytes(b"half")
    assert [c.step for c in loras.checkpoints(place.lora("parts"))] == [4]
    place.train(name="parts", resume="newest", **LONG)
    assert place.weights("parts") == weights(whole)
    assert not (place.lora("parts") / ".part").exists()


def test_a_failure_is_recorded_as_one(place):
    from training_pro.core.jobs import Session
    from training_pro.engine.peft_engine import PeftEngine

    host = place.host()
    host.loaded_model().model.model.layers[1].register_forward_hook(lambda *_: 1 / 0)
    job = Session().start(
        "training", "Training 'a'", host, lambda job: PeftEngine().train(place.settings(), host, job)
    )
    (*_, end) = job.log.follow()
    assert end.outcome == "failed"
    assert end.text == "Training 'a' ended with ZeroDivisionError: division by zero"
    assert not place.lora().exists()


def test_a_discarded_new_run_leaves_nothing(place):
    end = place.train(job=at(2, lambda job: job.control.ask(Request.DISCARD)), **LONG)
    assert (end.outcome, end.text) == ("stopped", "'a' was discarded after step 2.")
    assert not place.lora().exists()


def test_discarding_a_replacement_restores_the_old_lora(place):
    place.train(epochs=1)
    before = {p.name: p.read_bytes() for p in place.lora().iterdir() if p.is_file()}
    place.train(if_exists="replace", job=at(2, lambda job: job.control.ask(Request.DISCARD)), **LONG)
    assert {p.name: p.read_bytes() for p in place.lora().iterdir() if p.is_file()} == before
    assert not list(place.lora().glob("Backup-*"))


def test_discarding_a_run_without_checkpoints_restores_the_lora_that_a_crashed_run_replaced(place):
    """The old LoRA is only in a backup: its replacement failed before its first checkpoint."""
    place.train(epochs=1)
    before = read_tree(place.lora())
    with pytest.raises(OSError, match="the power went"):
        place.train(if_exists="replace", job=breaking_at(2), save_each_epoch=False, epochs=2)
    (backup,) = place.lora().glob("Backup-*")
    assert read_tree(backup) == before
    place.train(if_exists="continue", job=at(2, lambda job: job.control.ask(Request.DISCARD)), **LONG)
    assert read_tree(place.lora()) == before


def test_discarding_a_resume_leaves_none_of_its_checkpoints(place):
    place.train(job=stopping_at(2), **LONG)
    more = {"save_every": 1, "keep_checkpoints": 1}
    place.train(resume="newest", job=at(7, lambda job: job.control.ask(Request.DISCARD)), **{**LONG, **more})
    assert [path.name for path in place.lora().glob("checkpoint-*")] == ["checkpoint-2"]


def test_discarding_a_resume_keeps_the_earlier_run(place):
    place.train(job=stopping_at(2), **LONG)
    before = {p.name: p.read_bytes() for p in place.lora().iterdir() if p.is_file()}
    place.train(resume="newest", job=at(5, lambda job: job.control.ask(Request.DISCARD)), **LONG)
    assert {p.name: p.read_bytes() for p in place.lora().iterdir() if p.is_file()} == before
    assert [c.step for c in loras.checkpoints(place.lora())] == [2]
    assert loras.run_status(place.lora()) == "stopped"


def test_discarding_a_resume_keeps_all_earlier_checkpoints(place):
    """Its checkpoints, its best one and its backups, whatever came after them."""
    often = {**LONG, "epochs": 3, "keep_checkpoints": 1, "backup_minutes": 1e-6}
    with pytest.raises(OSError, match="the power went"):
        place.train(job=breaking_at(5), **often)
    (place.lora() / "checkpoint-4-epoch-1").rename(place.lora() / "checkpoint-4-best")
    shutil.rmtree(place.lora() / ".part")
    before = read_tree(place.lora())
    assert [c.step for c in loras.resumable_checkpoints(place.lora())] == [2, 3, 4]
    place.train(resume="newest", job=at(10, lambda job: job.control.ask(Request.DISCARD)), **often)
    assert read_tree(place.lora()) == before


def test_earlier_checkpoints_are_thinned_at_the_end_of_a_resumed_run(place):
    often = {**LONG, "save_every": 1, "keep_checkpoints": 2}
    place.train(job=stopping_at(3), **often)
    seen = []
    job = at(7, lambda job: seen.extend(c.step for c in loras.checkpoints(place.lora())))
    place.train(resume="newest", job=job, **often)
    (plan,) = (event for event in job.log.since(0) if isinstance(event, RunPlanned))
    assert [event.step for event in plan.earlier if isinstance(event, CheckpointSaved)] == [2, 3]
    assert seen == [2, 3, 5, 6]
    assert [c.step for c in loras.checkpoints(place.lora())] == [7, 8]


def test_a_pause_lasts_until_resumed_and_changes_nothing(place, whole):
    import threading

    def pause(job):
        job.control.ask(Request.PAUSE)
        threading.Timer(1.5, job.control.resume).start()

    job = at(3, pause)
    place.train(name="paused", job=job, **LONG)
    events = [e for e in job.log.since(0) if isinstance(e, (Note, Stage)) and "fter step 3" in e.text]
    assert [e.text for e in events] == [
        "Paused after step 3 until you resume the run; the model stays in memory",
        "Resuming after step 3.",
    ]
    assert 0.5 < events[1].at - events[0].at < 10
    assert place.weights("paused") == weights(whole)


def test_a_paused_run_can_be_stopped(place):
    import threading

    def pause_and_stop(job):
        job.control.ask(Request.PAUSE)
        threading.Timer(0.5, job.control.ask, [Request.STOP]).start()

    assert place.train(job=at(1, pause_and_stop), **LONG).outcome == "stopped"


def test_a_run_ends_at_a_given_loss_or_epoch(place):
    job = Job("training", "a test")
    end = place.train(job=job, stop_at_epoch=1, **LONG)
    assert end.outcome == "finished"
    assert end.text.startswith("'a' finished at step 4 of 8 because epoch 1 is done. The smoothed loss is ")
    assert saved(job)[-1][0] == 4
    end = place.train(name="b", stop_at_loss=50, **LONG)
    assert end.text.startswith("'b' finished at step 1 of 8 because the smoothed loss 6.")


def test_discarding_restores_the_replaced_run_even_if_the_clock_was_set_back(with_lora):
    with_lora.train(if_exists="replace")
    (earlier,) = with_lora.lora().glob("Backup-*")
    os.utime(earlier, (time.time() + 1000, time.time() + 1000))
    before = read_tree(with_lora.lora())
    with_lora.train(if_exists="replace", job=at(2, lambda job: job.control.ask(Request.DISCARD)), max_steps=4)
    assert read_tree(with_lora.lora()) == before


def test_a_kill_while_the_old_run_is_moved_leaves_no_crashed_run(with_lora, monkeypatch):
    """Otherwise it could be discarded, together with all that is not yet in the backup."""
    before, replace, inside = read_tree(with_lora.lora()), Path.replace, Path.iterdir
    monkeypatch.setattr(Path, "iterdir", lambda path: iter(sorted(inside(path), key=lambda p: p.name != LOG)))

    class Killed(BaseException):
        pass

    for last in range(1, 30):
        moves = []

        def killed(path, target, last=last, moves=moves):
            if Path(target).parent.name.startswith("Backup-"):
                moves.append(target)
                if len(moves) > last:
                    raise Killed
            return replace(path, target)

        monkeypatch.setattr(Path, "replace", killed)
        try:
            with_lora.train(if_exists="replace", max_steps=1)
        except Killed:
            assert find_crashed_runs(with_lora.folders) == []
            kept = {file.rpartition("/")[2] for file in read_tree(with_lora.lora())}
            assert {file.rpartition("/")[2] for file in before} <= kept
        else:
            return


def finishing_meanwhile(place, **run):
    """A job that another program overtakes: it trains the same name while this one reads its data."""
    others = [lambda: place.train(**run)]
    return watched_job(lambda job, event: others.pop()() if others and isinstance(event, Stage) else None)


@pytest.mark.parametrize("if_exists", ["ask", "replace", "continue", "new_name"])
def test_a_lora_that_another_program_finishes_while_this_one_prepares_is_not_lost(place, if_exists):
    job = finishing_meanwhile(place, learning_rate=5e-3)
    if if_exists == "ask":
        with pytest.raises(SettingsError, match="'a' already exists: a finished LoRA"):
            place.train(job=job)
    else:
        place.train(job=job, if_exists=if_exists)
    other = [path for path in place.folders.loras.rglob("training_parameters.json") if "0.005" in path.read_text()]
    assert [(path.parent / "adapter_model.safetensors").is_file() for path in other] == [True]
    where = {"replace": "Backup-*", "continue": "Backup-*", "new_name": "../a-2", "ask": "."}[if_exists]
    assert len([*place.lora().glob(where)]) == 1 if "*" in where else (place.lora() / where).is_dir()


def test_continuing_a_lora_that_crashes_before_its_first_checkpoint_begins_with_it_again(with_lora):
    run = {**LONG, "save_each_epoch": False}
    with_lora.train(name="whole")
    with_lora.train(name="whole", if_exists="continue", **run)
    for resume, if_exists in (("", "continue"), ("newest", "ask"), ("", "continue")):
        job = breaking_at(2)
        with pytest.raises(OSError, match="the power went"):
            with_lora.train(job=job, resume=resume, if_exists=if_exists, **run)
    with_lora.train(resume="newest", **run)
    assert with_lora.weights("a") == with_lora.weights("whole")


def test_a_link_to_another_lora_is_not_trained(with_lora):
    (with_lora.folders.loras / "link").symlink_to(with_lora.lora())
    before = read_tree(with_lora.lora())
    with pytest.raises(SettingsError, match=r"'link' is a link to 'a'\. Enter 'a' or another name"):
        with_lora.train(name="link", if_exists="replace")
    with hold_run_lock("a", with_lora.folders), pytest.raises(BusyError):
        refuse_in_progress("link", with_lora.folders)
    assert read_tree(with_lora.lora()) == before


def test_a_run_that_resumes_at_its_last_step_has_a_report(place):
    def watch(job, event):
        if isinstance(event, CheckpointSaved):
            raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=watched_job(watch), save_each_epoch=True)
    place.train(resume="newest")
    assert (place.lora() / "report.html").is_file()
