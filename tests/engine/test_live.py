"""Live settings and requests during a run: when they take effect, and what they do."""

from __future__ import annotations

import gc
import shutil
import threading
import weakref

import pytest
import torch
from accelerate import Accelerator
from training_pro.core import jobs
from training_pro.core.jobs import Job, Note, Request, Stage, Step
from training_pro.records.folder import loras, read_log
from training_pro.settings import files
from training_pro.tests.engine import watching
from training_pro.tests.engine.architectures import read_graph
from training_pro.tests.engine.watching import asking, at, changing, events_of, extending, steps_of, texts
from training_pro.tests.tiny import watched_job

FOUR = {"epochs": 4, "schedule": "constant", "warmup_steps": 0, "save_each_epoch": False}
RATE = 1e-2
STOP, WIND_DOWN = asking(Request.STOP), asking(Request.WIND_DOWN)


def saved(job):
    return [(event.step, event.folder.name) for event in events_of(job, jobs.CheckpointSaved)]


def freeing(actions, meanwhile):
    """Return a job that frees the GPU after step 5, and does this as soon as it is free."""

    def watch(job, event):
        if isinstance(event, Step) and event.step in actions:
            actions[event.step](job)
        elif isinstance(event, Stage) and "the model is unloaded" in event.text:
            meanwhile(job)

    return watched_job(watch)


def resume(job):
    job.control.resume()


FREE_AT_5 = {5: asking(Request.FREE_MEMORY)}


def test_a_learning_rate_factor_and_a_wind_down_take_effect_at_the_next_step(place):
    """In the schedule that is shown, and in the optimizer."""
    job = at({3: changing(rate_factor=0.5), 6: changing(rate_factor=2), 9: WIND_DOWN})
    with watching.optimizer_groups() as used:
        end = place.train(job=job, **FOUR)
    expected = [RATE] * 3 + [RATE / 2] * 3 + [RATE * 2] * 3 + [RATE, 0.0]
    assert watching.rates_of(job) == pytest.approx(expected)
    assert [groups[0]["lr"] for groups in used] == pytest.approx(expected, rel=1e-12)
    assert [entry["learning_rate"] for entry in read_graph(place)] == watching.rates_of(job)
    changes = [
        (event.step, dict(event.changes)["rate_factor"]) for event in events_of(job, jobs.LiveSettingsChanged)
    ]
    assert changes == [(3, (1.0, 0.5)), (6, (0.5, 2.0))]
    first, second, third = events_of(job, jobs.PlanChanged)
    assert (first.step, first.steps, first.why) == (3, 16, "learning rate multiplied by 0.5")
    assert first.rates == pytest.approx([RATE] * 3 + [RATE / 2] * 13)
    assert second.rates == pytest.approx([*expected[:9], *[RATE * 2] * 7])
    assert (third.step, third.steps, third.why) == (9, 11, "winding down as requested")
    assert third.rates == pytest.approx(expected)
    because = "because the learning rate has fallen to 0 (as requested)"
    assert (end.outcome, loras.run_status(place.lora())) == ("finished", "finished")
    assert end.text.startswith(f"'a' finished at step 11 of 16 {because}")
    assert place.train(resume="newest", **FOUR).text.startswith("'a' is finished: 11 of 16 steps")


def test_the_rates_follow_their_plan_also_where_float16_leaves_a_step_out(place, monkeypatch):
    skipped = [True, True]
    was_skipped = property(lambda self: bool(skipped) and skipped.pop())
    monkeypatch.setattr(Accelerator, "optimizer_step_was_skipped", was_skipped)
    job = at({9: WIND_DOWN})
    with watching.optimizer_groups() as used:
        place.train(job=job, **{**FOUR, "schedule": "linear"})
    assert [groups[0]["lr"] for groups in used] == pytest.approx(watching.rates_of(job)) and not skipped


def test_a_stop_rule_that_is_set_while_it_runs_is_on_disk_at_once(place):
    seen = []

    def look(job):
        seen.append(files.load_settings(place.lora() / "training_parameters.json").values["stop_at_epoch"])

    job = at({5: changing(stop_at_epoch=2), 7: look})
    end = place.train(job=job, **FOUR)
    assert (seen, steps_of(job)[-1]) == ([2], 8)
    assert end.text.startswith("'a' finished at step 8 of 16 because epoch 2 is done")
    assert place.train(resume="newest", **FOUR).text.startswith("'a' is finished: 8 of 16 steps are done.")


def test_what_changed_during_a_run_is_in_its_records_and_in_force_when_it_resumes(place):
    job = at({1: extending(1), 2: changing(stop_at_loss=1.5, rate_factor=0.5), 3: STOP})
    place.train(job=job, **FOUR)
    in_force = jobs.settings_in_force(job.log.since(0))
    assert (in_force["stop_at_loss"], in_force["epochs"], in_force["max_steps"]) == (1.5, 5, 0)
    resumed = Job("training", "a test")
    place.train(job=resumed, resume="newest", **FOUR)  # the command does not say it again
    (planned,) = events_of(resumed, jobs.RunPlanned)
    assert planned.settings["stop_at_loss"] == 1.5
    assert files.load_settings(place.lora() / "training_parameters.json").values["stop_at_loss"] == 1.5
    (change,) = read_log(place.lora())["live_changes"]
    before = {"stop_at_loss": 0.0, "rate_factor": 1.0}
    assert change == {"step": 2, "before": before, "after": {"stop_at_loss": 1.5, "rate_factor": 0.5}}


@pytest.mark.long
def test_live_settings_are_part_of_a_checkpoint(place):
    requests = {2: changing(rate_factor=0.5, stop_at_epoch=3), 5: WIND_DOWN}
    place.train(name="whole", job=at(requests), **FOUR)
    place.train(name="parts", job=at({**requests, 3: STOP}), **FOUR)
    place.train(name="parts", job=at({5: WIND_DOWN, 6: STOP}), resume="newest", **FOUR)
    place.train(name="parts", resume="newest", **FOUR)
    assert place.weights("parts") == place.weights("whole")
    rates = [[entry["learning_rate"] for entry in read_graph(place, name)] for name in ("parts", "whole")]
    assert rates[0] == rates[1] and len(rates[0]) == 7


@pytest.mark.long
def test_more_epochs_redraw_the_schedule_and_end_as_a_run_that_had_them_from_there(place):
    two = {"epochs": 2, "schedule": "linear", "warmup_steps": 0, "save_each_epoch": False, "dropout": 0.1}
    job = at({3: extending(2)})
    assert place.train(job=job, **two).text.startswith("'a' finished at step 16 of 16")
    assert steps_of(job) == list(range(1, 17))
    assert len(events_of(job, jobs.RunPlanned)) == 1
    (planned,) = events_of(job, jobs.PlanChanged)
    assert (planned.step, planned.steps, planned.why) == (3, 16, "2 more epochs")
    assert planned.rates == pytest.approx(watching.rates_of(job))
    assert planned.rates[3:] == pytest.approx([RATE * (1 - s / 16) for s in range(3, 16)])
    assert watching.read(place.lora() / "training_parameters.json")["epochs"] == 4
    assert saved(job) == [(3, "checkpoint-3")]
    place.train(name="b", job=watching.stopping_at(3), **two)
    place.train(name="b", resume="newest", **{**two, "epochs": 4})
    assert place.weights("a") == place.weights("b")


@pytest.mark.long
@pytest.mark.parametrize("kind", [{}, {"dora": True, "train_head": True}], ids=["plain", "dora and head"])
def test_a_pause_that_frees_the_gpu_resumes_bit_for_bit_and_puts_the_lora_back_on(place, kind):
    """The same weights at the same strength, even if its folder was deleted meanwhile."""

    def logits():
        with torch.no_grad():
            return host.loaded_model().model(torch.arange(4, 24)[None]).logits

    place.train(name="whole", **FOUR)
    place.train(name="a", max_steps=2, **kind)
    host, freed = place.host(), []
    model = weakref.ref(host.loaded_model().model)
    place.attach_lora(host, "a", 0.5)
    before = logits()

    def lose(job):
        gc.collect()
        freed.append((model() is None, bool(host.model_status().problem)))
        shutil.rmtree(place.lora("a"))
        job.control.ask(Request.FREE_MEMORY)  # pressed once more
        threading.Timer(0.5, resume, [job]).start()

    job = freeing(FREE_AT_5, lose)
    assert place.train(host, job=job, name="b", **FOUR).outcome == "finished"
    assert (freed, steps_of(job)) == ([(True, True)], list(range(1, 17)))
    assert place.weights("b") == place.weights("whole")
    assert host.loaded_model().loras == ("a",) and torch.equal(logits(), before)
    parameters = host.loaded_model().model.named_parameters()
    assert not any(weights.requires_grad for name, weights in parameters if "lora_" in name)
    place.detach_lora(host)
    assert not torch.equal(logits(), before)


def test_a_checkpoint_saved_while_the_memory_is_free_is_the_users(place):
    def save(job):
        job.control.ask(Request.CHECKPOINT)
        threading.Timer(0.5, resume, [job]).start()

    job = freeing(FREE_AT_5, save)
    assert place.train(job=job, max_steps=7).outcome == "finished"
    assert (5, "checkpoint-5-user") in saved(job) and (place.lora() / "checkpoint-5-user").is_dir()


def test_a_request_after_the_last_step_is_answered(place):
    job = watched_job(lambda job, event: getattr(event, "text", "") == "Saving the LoRA" and extending(1)(job))
    assert place.train(job=job, max_steps=1).outcome == "finished"
    assert "so it was not carried out. To train longer, continue the LoRA." in texts(job, jobs.Advice)[-1]


@pytest.mark.parametrize("request_", [Request.STOP, Request.DISCARD])
def test_a_run_paused_without_memory_can_be_stopped(with_lora, request_):
    host = with_lora.host()
    with_lora.attach_lora(host, "a")
    job = freeing(FREE_AT_5, asking(request_))
    assert with_lora.train(host, job=job, name="b", **FOUR).outcome == "stopped"
    detached = "The model stays unloaded, so a is detached. Attach it again after the model is loaded."
    assert host.model_status().problem and detached in texts(job, Note)
    if request_ is Request.DISCARD:
        assert not with_lora.lora("b").exists()
    else:
        kept = with_lora.lora("b") / "checkpoint-5" / "adapter_model.safetensors"
        assert with_lora.weights("b") == kept.read_bytes()
        assert loras.run_status(with_lora.lora("b")) == "stopped"


@pytest.mark.long
def test_a_crashed_run_resumes_from_one_of_two_backups_which_go_at_a_good_end(place):
    place.train(name="whole", **FOUR)
    with pytest.raises(OSError, match="the power went"):
        place.train(job=at({7: watching.break_down}), backup_minutes=1e-6, **FOUR)
    assert sorted(p.name for p in (place.lora() / "backup").iterdir()) == ["checkpoint-5", "checkpoint-6"]
    assert loras.run_status(place.lora()) == "cut off"
    job = Job("training", "a test")
    place.train(job=job, resume="newest", backup_minutes=1e-6, **FOUR)
    assert steps_of(job)[0] == 7
    assert place.weights() == place.weights("whole")
    assert not (place.lora() / "backup").exists()
