"""Live settings and requests during a run: when they take effect, and what they do."""

from __future__ import annotations

import itertools
import json
import shutil
import threading
import time
from functools import partial

import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.core.jobs import (
    CheckpointSaved,
    Job,
    LiveSettingsChanged,
    Note,
    PlanChanged,
    Request,
    RunPlanned,
    Stage,
    Step,
    TimeLimit,
    settings_in_force,
)
from training_pro.engine.compute import distributed
from training_pro.interface.tabs.compare_runs import comparison_html
from training_pro.records.folder import loras, read_log
from training_pro.records.folder.inventory import read_entry
from training_pro.settings import files
from training_pro.settings.live_settings import LiveSettings, resumed_settings
from training_pro.tests.tiny import watched_job

FOUR = {"epochs": 4, "schedule": "constant", "warmup_steps": 0, "save_each_epoch": False}
RATE = 1e-2


def at(requests):
    """Return a job that makes each request after its step."""

    def watch(job, event):
        if isinstance(event, Step) and event.step in requests:
            requests[event.step](job.control)

    return watched_job(watch)


def changing(**values):
    def change(control):
        control.live = control.live.changed(values)

    return change


def events_of(job, kind):
    return [event for event in job.log.since(0) if isinstance(event, kind)]


def rates(job):
    return [event.learning_rate for event in events_of(job, Step)]


def saved(job):
    return [(event.step, event.folder.name) for event in events_of(job, CheckpointSaved)]


def graph(place, name="a"):
    return json.loads((place.lora(name) / "training_graph.json").read_text(encoding="utf-8"))


def test_a_learning_rate_factor_takes_effect_at_the_next_step(place):
    job = at({3: changing(rate_factor=0.5), 6: changing(rate_factor=2)})
    place.train(job=job, **FOUR)
    assert rates(job) == pytest.approx([RATE] * 3 + [RATE / 2] * 3 + [RATE * 2] * 10)
    assert [(e.step, dict(e.changes)) for e in events_of(job, LiveSettingsChanged)] == [
        (3, {"rate_factor": (1.0, 0.5)}),
        (6, {"rate_factor": (0.5, 2.0)}),
    ]
    first, second = events_of(job, PlanChanged)
    assert (first.step, first.steps, first.why) == (3, 16, "learning rate multiplied by 0.5")
    assert first.rates == pytest.approx([RATE] * 3 + [RATE / 2] * 13)
    assert second.rates == pytest.approx(rates(job))


def test_the_optimizer_uses_the_logged_rates(place, monkeypatch):
    from training_pro.engine.training.trainer import RunTrainer

    used, step = [], RunTrainer.training_step

    def spying(self, *args, **more):
        used.append(self.optimizer.param_groups[0]["lr"])
        return step(self, *args, **more)

    monkeypatch.setattr(RunTrainer, "training_step", spying)
    job = at({2: changing(rate_factor=0.5), 5: lambda control: control.ask(Request.WIND_DOWN)})
    place.train(job=job, **FOUR)
    assert used == pytest.approx(rates(job), rel=1e-12)
    assert used == pytest.approx([RATE] * 2 + [RATE / 2] * 3 + [RATE / 4, 0.0])


def test_saving_rules_change_while_it_runs(place):
    job = at({4: changing(save_every=3), 10: changing(save_every=0, save_each_epoch=True)})
    place.train(job=job, **FOUR)
    # A change takes effect after the step in which it is requested; step 12 ends an epoch.
    assert saved(job) == [
        (6, "checkpoint-6"),
        (9, "checkpoint-9"),
        (12, "checkpoint-12-epoch-3"),
        (16, "checkpoint-16-epoch-4"),
    ]
    assert len(loras.checkpoints(place.lora())) == 3  # keep_checkpoints: the oldest one is slimmed
    assert sorted(p.name for p in (place.lora() / "checkpoint-6").iterdir()) == [
        "adapter_config.json",
        "adapter_model.safetensors",
    ]


def test_a_stop_rule_that_is_set_while_it_runs(place):
    job = at({5: changing(stop_at_epoch=2)})
    end = place.train(job=job, **FOUR)
    assert (end.outcome, events_of(job, Step)[-1].step) == ("finished", 8)
    assert end.text.startswith("'a' finished at step 8 of 16 because epoch 2 is done")
    again = place.train(resume="newest", **FOUR)
    assert again.text.startswith("'a' is finished: 8 of 16 steps are done.")


def test_winding_down_ends_at_rate_0_and_is_finished(place):
    job = at({9: lambda control: control.ask(Request.WIND_DOWN)})
    end = place.train(job=job, **FOUR)
    assert end.outcome == "finished"
    assert end.text.startswith(
        "'a' finished at step 11 of 16 because the learning rate has fallen to 0 (as requested)"
    )
    assert rates(job) == pytest.approx([RATE] * 9 + [RATE / 2, 0.0])
    (planned,) = events_of(job, PlanChanged)
    assert (planned.step, planned.steps, planned.why) == (9, 11, "winding down as requested")
    assert planned.rates == pytest.approx(rates(job))
    assert [entry["learning_rate"] for entry in graph(place)] == rates(job)
    assert loras.run_status(place.lora()) == "finished"
    assert place.train(resume="newest", **FOUR).text.startswith("'a' is finished: 11 of 16 steps")


def test_a_rule_may_wind_down_instead_of_stopping(place):
    job = Job("training", "a test")
    end = place.train(job=job, stop_at_epoch=1, stop_how="wind_down", **FOUR)
    assert events_of(job, Step)[-1].step == 6
    assert "because the learning rate has fallen to 0 (epoch 1 is done)" in end.text
    assert rates(job)[-1] == 0.0


def test_what_changed_during_a_run_is_in_its_records_and_in_force_when_it_resumes(place):
    """stop at loss 1.5, set in mid-run, was in no record, and Compare and Copy settings said 0."""
    job = at({2: changing(stop_at_loss=1.5, rate_factor=0.5), 3: lambda control: control.ask(Request.STOP)})
    place.train(job=job, **FOUR)
    assert settings_in_force(job.log.since(0))["stop_at_loss"] == 1.5
    resumed = Job("training", "a test")
    place.train(job=resumed, resume="newest", **FOUR)  # the command does not say it again
    (planned,) = events_of(resumed, RunPlanned)
    assert planned.settings["stop_at_loss"] == 1.5
    assert files.load_settings(place.lora() / "training_parameters.json").values["stop_at_loss"] == 1.5
    (change,) = read_log(place.lora())["live_changes"]
    before = {"stop_at_loss": 0.0, "rate_factor": 1.0}
    assert change == {"step": 2, "before": before, "after": {"stop_at_loss": 1.5, "rate_factor": 0.5}}
    place.train(name="b", **FOUR)
    compared = comparison_html(*map(partial(read_entry, folders=place.folders), (place.lora(), place.lora("b"))))
    assert "after step 2: Stop at loss 0 → 1.5, learning rate × 0.5" in compared
    assert "<td>Stop at loss</td><td>1.5</td><td>0</td>" in compared


def test_a_change_is_on_disk_before_the_next_checkpoint(place):
    """A run that crashes after it is resumed from the page with what is in force."""
    seen = []

    def look(control):
        seen.append(files.load_settings(place.lora() / "training_parameters.json").values["stop_at_epoch"])

    place.train(job=at({2: changing(stop_at_epoch=1.5), 4: look}), **FOUR)
    assert seen == [1.5]


def test_live_settings_and_the_loss_drop_are_part_of_a_checkpoint(place):
    def stop(control):
        control.ask(Request.STOP)

    requests = {2: changing(rate_factor=0.5, stop_at_epoch=3), 5: lambda control: control.ask(Request.WIND_DOWN)}
    place.train(name="whole", job=at(dict(requests)), **FOUR)
    place.train(name="parts", job=at({**requests, 3: stop}), **FOUR)
    place.train(name="parts", job=at({5: requests[5], 6: stop}), resume="newest", **FOUR)
    place.train(name="parts", resume="newest", **FOUR)
    assert place.weights("parts") == place.weights("whole")
    assert [e["learning_rate"] for e in graph(place, "parts")] == [
        e["learning_rate"] for e in graph(place, "whole")
    ]
    assert len(graph(place, "parts")) == 7


def test_new_values_of_the_user_win():
    asked = LiveSettings().changed({"stop_at_loss": 1.5, "save_every": 10})
    then = LiveSettings().changed({"stop_at_loss": 1.0, "save_every": 10})
    in_force = then.changed({"save_every": 3, "rate_factor": 0.5})
    now = resumed_settings(asked, then_asked=then.values(), then_in_force=in_force.values())
    assert (now.stopping.stop_at_loss, now.saving.save_every, now.rate_factor) == (1.5, 3, 0.5)


def test_a_change_reports_all_problems_at_once():
    with pytest.raises(SettingsError) as refusal:
        LiveSettings().changed(
            {"rank": 4, "stop_at_loss": -1, "rate_factor": 0, "keep_best": "x", "save_every": 2}
        )
    assert [problem.partition(":")[0] for problem in refusal.value.problems] == [
        "'rank' can't be changed during a run.",
        "Stop at loss",
        "Learning rate factor",
        "Keep the best",
    ]


def test_more_epochs_redraw_the_schedule_and_end_as_a_run_that_had_them_from_there(place):
    two = {"epochs": 2, "schedule": "linear", "warmup_steps": 0, "save_each_epoch": False, "dropout": 0.1}
    job = at({3: lambda control: control.extend(2)})
    end = place.train(job=job, **two)
    assert end.text.startswith("'a' finished at step 16 of 16")
    assert [e.step for e in events_of(job, Step)] == list(range(1, 17))
    assert len(events_of(job, RunPlanned)) == 1
    (planned,) = events_of(job, PlanChanged)
    assert (planned.step, planned.steps, planned.why) == (3, 16, "2 more epochs")
    assert planned.rates == pytest.approx(rates(job))
    assert planned.rates[3:] == pytest.approx([RATE * (1 - s / 16) for s in range(3, 16)])
    assert json.loads((place.lora() / "training_parameters.json").read_text())["epochs"] == 4
    assert saved(job) == [(3, "checkpoint-3")]
    place.train(name="b", job=at({3: lambda control: control.ask(Request.STOP)}), **two)
    place.train(name="b", resume="newest", **{**two, "epochs": 4})
    assert place.weights("a") == place.weights("b")


def test_the_time_limit_counts_from_the_first_step_also_after_added_epochs(place, monkeypatch):
    """Each step takes a second of this clock."""
    clock = itertools.count()
    monkeypatch.setattr(distributed, "sync_control", lambda control, _: (control.pending, float(next(clock))))
    job = at({3: lambda control: control.extend(1)})
    job.control.time_limit = TimeLimit(5.0, "the time is over")
    end = place.train(job=job, **FOUR)
    assert end.text.startswith("'a' finished at step 6 of 20 because the time is over")


def test_more_epochs_at_the_last_step(place):
    job = at({4: lambda control: control.extend(0.5)})
    end = place.train(job=job, epochs=1, save_each_epoch=False)
    assert end.text.startswith("'a' finished at step 6 of 6")


def when_free(job, host, do):
    """Call `do` as soon as the run has freed the GPU."""

    def wait():
        while not any("the model is unloaded" in e.text for e in events_of(job, Stage)):
            time.sleep(0.05)
        do(host)

    thread = threading.Thread(target=wait)
    thread.start()
    return thread


def test_a_pause_that_frees_the_gpu_resumes_bit_for_bit(place):
    import gc
    import weakref

    place.train(name="whole", **FOUR)
    host = place.host()
    model, seen = weakref.ref(host.loaded_model().model), []
    job = at({5: lambda control: control.ask(Request.FREE_MEMORY)})

    def look(host):
        gc.collect()
        seen.append((model() is None, host._loaded is None))
        job.control.resume()

    waiting = when_free(job, host, look)
    end = place.train(host, job=job, **FOUR)
    waiting.join()
    assert seen == [(True, True)]
    assert end.outcome == "finished"
    assert place.weights("a") == place.weights("whole")
    assert [e.step for e in events_of(job, Step)] == list(range(1, 17))


@pytest.mark.parametrize("kind", [{}, {"dora": True, "train_head": True}], ids=["plain", "dora and head"])
def test_a_lora_is_put_back_on_after_a_run_that_freed_the_gpu(place, kind):
    """The same weights at the same strength, even if its folder was deleted meanwhile."""
    place.train(name="a", max_steps=2, **kind)
    host = place.host()
    place.attach_lora(host, "a", 0.5)
    before = said_by(host)
    job = at({5: lambda control: control.ask(Request.FREE_MEMORY)})

    def lose(host):
        shutil.rmtree(place.lora("a"))
        job.control.resume()

    waiting = when_free(job, host, lose)
    place.train(host, job=job, name="b", **FOUR)
    waiting.join()
    assert host.loaded_model().loras == ("a",)
    assert torch.equal(said_by(host), before)
    assert not any(
        weights.requires_grad for n, weights in host.loaded_model().model.named_parameters() if "lora_" in n
    )
    place.detach_lora(host)
    assert not torch.equal(said_by(host), before)


def test_if_the_model_stays_unloaded_the_lora_is_reported_off(with_lora):
    host = with_lora.host()
    with_lora.attach_lora(host, "a")
    job = at({5: lambda control: control.ask(Request.FREE_MEMORY)})
    waiting = when_free(job, host, lambda _: job.control.ask(Request.STOP))
    assert with_lora.train(host, job=job, name="b", **FOUR).outcome == "stopped"
    waiting.join()
    assert host.model_status().problem
    assert "The model stays unloaded, so a is detached. Attach it again after the model is loaded." in [
        note.text for note in events_of(job, Note)
    ]


def said_by(host):
    with torch.no_grad():
        return host.loaded_model().model(torch.arange(4, 24)[None]).logits


def test_a_paused_run_can_still_free_its_memory(place):
    def pause(control):
        control.ask(Request.PAUSE)
        threading.Timer(1.0, control.ask, [Request.FREE_MEMORY]).start()

    job = at({5: pause})
    waiting = when_free(job, None, lambda _: job.control.resume())
    assert place.train(job=job, **FOUR).outcome == "finished"
    waiting.join()


@pytest.mark.parametrize("request_", [Request.STOP, Request.DISCARD])
def test_a_run_paused_without_memory_can_be_stopped(place, request_):
    job = at({5: lambda control: control.ask(Request.FREE_MEMORY)})
    waiting = when_free(job, None, lambda _: job.control.ask(request_))
    end = place.train(job=job, **FOUR)
    waiting.join()
    assert end.outcome == "stopped"
    if request_ is Request.DISCARD:
        assert not place.lora().exists()
    else:
        assert place.weights() == (place.lora() / "checkpoint-5" / "adapter_model.safetensors").read_bytes()
        assert loras.run_status(place.lora()) == "stopped"


def test_two_backups_are_kept_and_removed_at_a_good_end(place):
    seen = []

    def watch(job, event):
        if isinstance(event, Step) and event.step in (9, 16):
            seen.append(sorted(p.name for p in (place.lora() / "backup").iterdir()))

    place.train(job=watched_job(watch), backup_minutes=1e-6, **FOUR)
    assert seen == [["checkpoint-7", "checkpoint-8"], ["checkpoint-14", "checkpoint-15"]]
    assert not (place.lora() / "backup").exists()


def test_a_crashed_run_resumes_from_a_backup(place):
    place.train(name="whole", **FOUR)

    def break_down(control):
        raise OSError("the power went")

    with pytest.raises(OSError, match="the power went"):
        place.train(job=at({7: break_down}), backup_minutes=1e-6, **FOUR)
    assert loras.run_status(place.lora()) == "cut off"
    job = Job("training", "a test")
    place.train(job=job, resume="newest", **FOUR)
    assert events_of(job, Step)[0].step == 7
    assert place.weights() == place.weights("whole")


def test_the_best_is_kept_and_the_last_stays_as_a_checkpoint(place):
    job = at({8: changing(rate_factor=100)})  # the loss rises from here on
    end = place.train(job=job, keep_best="loss", learning_rate=0.9, **FOUR)
    names = [name for _, name in saved(job)]
    steps = events_of(job, Step)
    best = min(steps, key=lambda step: step.smoothed)
    assert 8 <= best.step < 16
    assert names[-1] == "checkpoint-16"
    kept = place.lora() / f"checkpoint-{best.step}-best"
    assert place.weights() == (kept / "adapter_model.safetensors").read_bytes()
    assert (
        f"The LoRA from step {best.step}, the one with the best smoothed loss ({best.smoothed:.4f}), is in "
        in end.text
    )
    assert [p.name for p in place.lora().glob("checkpoint-*-best")] == [
        kept.name
    ]  # earlier best ones lost the mark
    assert place.weights() != (place.lora() / "checkpoint-16" / "adapter_model.safetensors").read_bytes()
    assert json.loads((place.lora() / "training_log.json").read_text())["kept_step"] == best.step
    assert {c.step for c in loras.checkpoints(place.lora())} >= {best.step, 16}


def test_more_epochs_are_limited_to_the_maximum_of_the_setting(place):
    """Otherwise the run could not be resumed: its own settings would be refused."""
    job = at({2: lambda control: control.extend(1000), 3: lambda control: control.ask(Request.STOP)})
    place.train(job=job, **FOUR)
    assert [planned.why for planned in events_of(job, PlanChanged)] == ["996 more epochs"]
    asked = files.load_settings(place.lora() / "training_parameters.json", place.folders.datasets).values
    assert (
        place.train(resume="newest", job=at({5: lambda control: control.ask(Request.STOP)}), **asked).outcome
        == "stopped"
    )


@pytest.mark.parametrize(
    ("settings", "requests", "last"),
    [
        ({"stop_at_epoch": 2}, {8: Request.FREE_MEMORY}, 8),
        ({}, {9: Request.WIND_DOWN, 11: Request.FREE_MEMORY}, 11),
        ({}, {16: Request.FREE_MEMORY}, 16),
    ],
    ids=["a rule", "wound down", "the plan"],
)
def test_a_finished_run_does_not_wait_with_the_gpu_freed(place, settings, requests, last):
    def asking(request):
        return lambda control: control.ask(request)

    job, host = at({step: asking(request) for step, request in requests.items()}), place.host()
    end = place.train(host, job=job, **FOUR, **settings)
    assert (end.outcome, events_of(job, Step)[-1].step) == ("finished", last)
    assert not host.model_status().problem
    assert json.loads((place.lora() / "training_log.json").read_text())["current_steps"] == last


def test_a_finished_run_with_more_epochs_waits_with_the_gpu_freed(place):
    job = at({4: lambda control: (control.extend(1), control.ask(Request.FREE_MEMORY))})
    waiting = when_free(job, None, lambda _: job.control.resume())
    end = place.train(job=job, **{**FOUR, "epochs": 1})
    waiting.join()
    assert end.text.startswith("'a' finished at step 8 of 8")


@pytest.mark.parametrize("request_kind", [Request.STOP, Request.WIND_DOWN, Request.CHECKPOINT])
def test_a_request_after_the_processes_agreed_waits_for_the_next_step(place, monkeypatch, request_kind):
    """A process that carried it out alone would leave the others waiting for it forever."""
    agree, steps = distributed.sync_control, []

    def agree_and_ask(control, clock):
        agreed = agree(control, clock)
        steps.append(len(steps) + 1)
        if len(steps) == 3:
            control.ask(request_kind)
        return agreed

    monkeypatch.setattr(distributed, "sync_control", agree_and_ask)
    job = Job("training", "a test")
    place.train(job=job, **FOUR)
    notes = [note.text for note in events_of(job, Note)]
    done = {
        Request.STOP: steps[-1] == 4,
        Request.WIND_DOWN: any("Winding down from step 4 on" in note for note in notes),
        Request.CHECKPOINT: [step for step, _ in saved(job)] == [4],
    }
    assert done[request_kind], (steps, notes, saved(job))
