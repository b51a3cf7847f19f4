"""Seeds: drawn where -1 asks for it, recorded, taken over by a resume, and apart for weights and data."""

from __future__ import annotations

import json

import pytest
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Job, Note, Request, Stage, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.engine.training import setup
from training_pro.records.folder import LOG, PARAMETERS
from training_pro.tests.tiny import watched_job

SPLIT = {"eval_share": 0.2, "hard_cut": "\\n", "cutoff": 16, "dropout": 0.1}


def read(place, name, file):
    return json.loads((place.lora(name) / file).read_text(encoding="utf-8"))


def notes(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Note)]


def stages(job):
    return [event.text for event in job.log.since(0) if isinstance(event, Stage)]


def stopping_at(step):
    def watch(job, event):
        if isinstance(event, Step) and event.step == step:
            job.control.ask(Request.STOP)

    return watched_job(watch)


def test_a_drawn_seed_is_shown_recorded_and_repeats_the_run(place):
    job = Job("training", "a test")
    place.train(job=job, seed=-1, **SPLIT)
    seed = read(place, "a", PARAMETERS)["seed"]
    assert seed >= 0
    assert f"Seed {seed}: picked at random and saved with the run." in notes(job)
    assert (read(place, "a", LOG)["seed"], read(place, "a", LOG)["data_seed"]) == (seed, seed)
    place.train(name="again", seed=seed, **SPLIT)
    assert place.weights("again") == place.weights()
    assert read(place, "again", LOG)["kept_aside_fingerprint"] == read(place, "a", LOG)["kept_aside_fingerprint"]


def test_every_run_draws_another_seed(place):
    for name in ("a", "b"):
        place.train(name=name, seed=-1, max_steps=1)
    assert read(place, "a", PARAMETERS)["seed"] != read(place, "b", PARAMETERS)["seed"]


def test_a_resume_with_minus_one_takes_the_seed_of_the_checkpoint(place):
    place.train(job=stopping_at(2), seed=-1, data_seed=-1, **SPLIT)
    first = read(place, "a", PARAMETERS)
    job = Job("training", "a test")
    place.train(job=job, resume="newest", seed=-1, data_seed=-1, **SPLIT)
    assert {key: read(place, "a", PARAMETERS)[key] for key in setup.SEEDS} == {
        key: first[key] for key in setup.SEEDS
    }
    assert f"Seed {first['seed']}: taken from the checkpoint." in notes(job)
    place.train(name="whole", seed=first["seed"], data_seed=first["data_seed"], **SPLIT)
    assert place.weights() == place.weights("whole")


def test_another_seed_than_the_drawn_one_is_refused_on_a_resume(place):
    place.train(job=stopping_at(2), seed=-1)
    with pytest.raises(SavingError, match=r"seed \(was \d+ and is now 7\)"):
        place.train(resume="newest", seed=7)


def test_the_data_seed_chooses_split_and_order_and_leaves_the_weights(place):
    place.train(name="same", data_seed=42, **SPLIT)
    place.train(name="auto", **SPLIT)
    assert place.weights("same") == place.weights("auto")
    place.train(name="other", data_seed=7, **SPLIT)
    logs = {name: read(place, name, LOG) for name in ("auto", "other")}
    assert logs["auto"]["kept_aside_fingerprint"] != logs["other"]["kept_aside_fingerprint"]
    assert (logs["other"]["seed"], logs["other"]["data_seed"]) == (42, 7)


def test_check_and_the_probe_use_seed_0_and_reuse_prepared_data(place):
    rows = ({"prompt": f"Ask {n}.", "completion": " Yes."} for n in range(9))
    place.write("rows.jsonl", "\n".join(map(json.dumps, rows)))
    asked = {"data": ["rows.jsonl"], "eval_share": 0.3}
    engine = PeftEngine()
    first = engine.check(place.settings(seed=-1, **asked), place.host())
    again = engine.check(place.settings(seed=-1, **asked), place.host())
    assert first.problems == () and first.as_json() == again.as_json()
    assert any("Seed -1" in note for note in first.notes)
    job = Job("probe", "a test")
    assert engine.probe(place.settings(seed=-1, **asked), place.host(), job).outcome == "finished"
    assert "Using the cached version of rows.jsonl" in stages(job)
    job = Job("training", "a test")
    place.train(job=job, seed=-1, **asked)
    assert "Using the cached version of rows.jsonl" in stages(job)


def test_several_processes_can_not_draw_a_seed_together(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="Seed -1: each process would pick a different seed"):
        place.train(data_seed=-1)
