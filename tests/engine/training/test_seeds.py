"""Seeds: drawn where -1 asks for it, recorded, taken over by a resume, and apart for weights and data."""

from __future__ import annotations

import pytest
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Job, Note
from training_pro.records.folder import PARAMETERS
from training_pro.tests.engine.architectures import read_log
from training_pro.tests.engine.watching import read, stopping_at, texts

SPLIT = {"eval_share": 0.2, "hard_cut": "\\n", "cutoff": 16, "dropout": 0.1, "max_steps": 4}


def seeds_of(place, name="a"):
    values = read(place.lora(name) / PARAMETERS)
    return {key: values[key] for key in ("seed", "data_seed")}


def test_a_drawn_seed_is_shown_recorded_and_repeats_the_run(place):
    job = Job("training", "a test")
    place.train(job=job, seed=-1, **SPLIT)
    seed = seeds_of(place)["seed"]
    assert seed >= 0 and f"Seed {seed}: picked at random and saved with the run." in texts(job, Note)
    assert (read_log(place)["seed"], read_log(place)["data_seed"]) == (seed, seed)
    place.train(name="again", seed=seed, **SPLIT)
    assert place.weights("again") == place.weights()
    place.train(name="other", seed=-1, max_steps=1)
    assert seeds_of(place, "other")["seed"] != seed


def test_a_resume_with_minus_one_takes_the_seed_of_the_checkpoint(place):
    place.train(job=stopping_at(2), seed=-1, data_seed=-1, **SPLIT)
    seeds, job = seeds_of(place), Job("training", "a test")
    with pytest.raises(SavingError, match=r"seed \(was \d+ and is now 7\)"):
        place.train(resume="newest", **SPLIT, **{**seeds, "seed": 7})
    place.train(job=job, resume="newest", seed=-1, data_seed=-1, **SPLIT)
    assert seeds_of(place) == seeds
    assert f"Seed {seeds['seed']}: taken from the checkpoint." in texts(job, Note)
    place.train(name="whole", **seeds, **SPLIT)
    assert place.weights() == place.weights("whole")


def test_the_data_seed_chooses_split_and_order_and_leaves_the_weights(place):
    for name, seed in (("auto", {}), ("same", {"data_seed": 42}), ("other", {"data_seed": 7})):
        place.train(name=name, **seed, **SPLIT)
    assert place.weights("same") == place.weights("auto")
    auto, other = read_log(place, "auto"), read_log(place, "other")
    assert auto["kept_aside_fingerprint"] != other["kept_aside_fingerprint"]
    assert (other["seed"], other["data_seed"]) == (42, 7)


def test_several_processes_can_not_draw_a_seed_together(place, monkeypatch):
    monkeypatch.setenv("WORLD_SIZE", "2")
    with pytest.raises(SettingsError, match="Seed -1: each process would pick a different seed"):
        place.train(data_seed=-1)
