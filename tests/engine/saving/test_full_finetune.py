"""Full fine-tuning: the result is a model of its own, which loads and resumes bit for bit."""

from __future__ import annotations

import shutil

import pytest
import torch
from training_pro.hosts.standalone import StandaloneHost
from training_pro.records.folder import inventory, loras
from training_pro.tests.engine.architectures import save_model, simulate_kill
from training_pro.tests.engine.watching import read, stopping_at

FULL = {"method": "full", "learning_rate": 1e-3, "epochs": 2}


class AmongModels:
    """Working folder for the test helpers, for a run that is saved among the models."""

    def __init__(self, place):
        self.place = place

    def lora(self, name="a"):
        return self.place.folders.models / name


def state_of(place, name):
    return StandaloneHost(place.folders, model=str(name)).loaded_model().model.state_dict()


def equal(left, right):
    return left.keys() == right.keys() and all(torch.equal(value, right[name]) for name, value in left.items())


def test_a_mixture_of_experts_resumes_with_the_weights_of_its_checkpoint(place):
    """Their names differ in memory and on the Hub, and the Trainer leaves out what it does not know."""
    model = str(save_model(place, "qwen3_moe"))
    place.train(StandaloneHost(place.folders, model=model), **FULL)
    whole = state_of(place, "a")
    simulate_kill(AmongModels(place), "a", 4)
    place.train(StandaloneHost(place.folders, model=model), **FULL, if_exists="continue")
    assert equal(state_of(place, "a"), whole)


@pytest.fixture
def trained(place):
    """A workspace in which a model of two epochs is 'a', with the weights of its base; its host, and its end."""
    host = place.host()
    before = {n: p.clone() for n, p in host.loaded_model().model.state_dict().items()}
    ended = place.train(host, **FULL, shard_size="200KB")
    return host, before, ended


def test_it_is_a_model_of_its_own_and_the_base_is_unchanged_when_loaded_again(place, trained):
    host, before, ended = trained
    folder = place.folders.models / "a"
    assert ended.folder == folder and "The model is in" in ended.text
    assert not list(place.folders.loras.glob("*"))
    assert host.model_status().problem  # the changed model is unloaded
    assert equal(host.loaded_model().model.state_dict(), before)
    assert all(p.requires_grad for p in host.loaded_model().model.parameters())
    assert "a" in host.models()
    changed = state_of(place, "a")
    assert changed.keys() == before.keys()
    assert not any(torch.equal(changed[name], before[name]) for name in before if "proj" in name)
    log = read(folder / "training_log.json")
    assert (log["method"], log["projections"]) == ("full", "all weights of the model")
    assert len(read(folder / "training_graph.json")) == 8 and read(folder / "config.json")["use_cache"] is True
    assert {"training_parameters.json", "tokenizer_config.json"} <= {path.name for path in folder.iterdir()}
    shards = list(folder.glob("*.safetensors"))  # no larger than asked
    assert len(shards) > 1 and all(path.stat().st_size < 250_000 for path in shards)
    assert place.train(host, **FULL, resume="checkpoint-4-epoch-1").outcome == "finished"  # from before its end


def test_a_crashed_run_is_listed_kept_without_what_a_kill_left_and_resumes_bit_for_bit(place, trained):
    folder, whole = place.folders.models / "a", state_of(place, "a")
    simulate_kill(AmongModels(place), "a", 4)
    leftover = folder / ".part" / "lora"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_text("half")
    (run,) = inventory.find_crashed_runs(place.folders)
    assert (run.name, run.folder, run.safe_step) == ("a", folder, 4)
    shutil.copytree(folder, place.folders.models / "kept")
    (kept,) = (r for r in inventory.find_crashed_runs(place.folders) if r.name == "kept")
    inventory.keep_run(kept, place.folders)
    assert [r.name for r in inventory.find_crashed_runs(place.folders)] == ["a"]
    assert equal(state_of(place, "kept"), state_of(place, folder / "checkpoint-4-epoch-1"))
    place.train(**FULL, shard_size="200KB", if_exists="continue")
    assert equal(state_of(place, "a"), whole)


def test_a_resumed_run_with_another_shard_size_leaves_only_its_own_weights(place):
    """transformers loads a single file before shards, so an old one would be loaded in place of the new model."""
    short = {**FULL, "max_steps": 2}
    place.train(job=stopping_at(1), **short, shard_size="200KB")
    place.train(**short, if_exists="continue")
    place.train(name="b", **short)
    resumed, whole = (place.folders.models / name for name in "ab")
    assert loras.weight_names(resumed) == loras.weight_names(whole)
    assert all((resumed / n).read_bytes() == (whole / n).read_bytes() for n in loras.weight_names(resumed))
