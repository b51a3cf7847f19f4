"""Full fine-tuning: the result is a model of its own, which loads and resumes bit for bit."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Job, Request, Step
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.records.folder import RunFolder, loras, run_folder
from training_pro.records.folder.crashed_runs import find_crashed_runs, keep_run
from training_pro.tests.engine.architectures import read_graph, simulate_kill
from training_pro.tests.tiny import watched_job

FULL = {"method": "full", "learning_rate": 1e-3, "sample_every": "never"}


class InModelFolder:
    """Working folder for the test helpers, for a run that is saved among the models."""

    def __init__(self, place):
        self._place = place

    def lora(self, name="a"):
        return self._place.folders.models / name


@pytest.fixture
def trained_model(place):
    host = place.host()
    before = {n: p.clone() for n, p in host.loaded_model().model.state_dict().items()}
    ended = place.train(host, **FULL, epochs=2, shard_size="200KB")
    return host, before, ended


def test_it_is_a_model_of_its_own_and_the_base_is_unchanged_when_loaded_again(place, trained_model):
    host, before, ended = trained_model
    folder = place.folders.models / "a"
    assert ended.folder == folder
    assert "The model is in" in ended.text
    assert not place.folders.loras.exists() or not list(place.folders.loras.iterdir())
    assert host._loaded is None
    reloaded = host.loaded_model().model.state_dict()
    assert all(torch.equal(value, reloaded[name]) for name, value in before.items())
    new_host = StandaloneHost(place.folders, model="a")
    assert "a" in new_host.models()
    changed = new_host.loaded_model().model.state_dict()
    assert changed.keys() == before.keys()
    assert not any(torch.equal(changed[name], before[name]) for name in before if "proj" in name)
    assert new_host.loaded_model().model.config.use_cache is True
    assert all(p.requires_grad for p in host.loaded_model().model.parameters())


def test_its_records_are_saved_with_it_and_its_shards_are_no_larger_than_requested(place, trained_model):
    folder = place.folders.models / "a"
    log = json.loads((folder / "training_log.json").read_text())
    assert (log["method"], log["projections"]) == ("full", "all weights of the model")
    assert len(read_graph(InModelFolder(place))) == 8
    assert (folder / "training_parameters.json").is_file()
    shards = sorted(folder.glob("*.safetensors"))
    assert len(shards) > 1
    assert all(p.stat().st_size < 250_000 for p in shards)
    assert (folder / "tokenizer_config.json").is_file()


def test_it_resumes_from_a_checkpoint_bit_for_bit(place, trained_model):
    simulate_kill(InModelFolder(place), "a", 4)
    for file in (place.folders.models / "a").glob("checkpoint-*"):
        assert file.name.startswith("checkpoint-4")
    place.train(**FULL, epochs=2, shard_size="200KB", if_exists="continue")
    place.train(name="b", **FULL, epochs=2)
    resumed = StandaloneHost(place.folders, model="a").loaded_model().model.state_dict()
    uninterrupted = StandaloneHost(place.folders, model="b").loaded_model().model.state_dict()
    assert all(torch.equal(value, uninterrupted[name]) for name, value in resumed.items())


@pytest.mark.parametrize(("first", "then"), [("5GB", "200KB"), ("200KB", "5GB")])
def test_a_resumed_run_with_another_shard_size_leaves_only_its_own_weights(place, first, then):
    """transformers loads a single file before shards, so an old one would be loaded in place of the new model."""
    stopping = watched_job(lambda job, e: job.control.ask(Request.STOP) if isinstance(e, Step) else None)
    place.train(job=stopping, **FULL, epochs=2, shard_size=first)
    place.train(**FULL, epochs=2, shard_size=then, if_exists="continue")
    place.train(name="b", **FULL, epochs=2, shard_size=then)
    resumed, uninterrupted = (place.folders.models / name for name in "ab")
    assert loras.weight_names(resumed) == loras.weight_names(uninterrupted)
    assert all(
        (resumed / name).read_bytes() == (uninterrupted / name).read_bytes()
        for name in loras.weight_names(resumed)
    )


def test_a_kill_while_shards_replace_a_single_file_leaves_no_mixture(tmp_path, monkeypatch):
    folder, move = RunFolder(tmp_path / "a", tmp_path), run_folder.move_atomically
    folder.path.mkdir()
    (folder.path / "model.safetensors").write_text("old")
    written = folder.empty_weights_folder()
    written.mkdir(parents=True)
    shards = [f"model-0000{n}-of-00002.safetensors" for n in (1, 2)]
    for name in (*shards, "model.safetensors.index.json"):
        (written / name).write_text("new")
    seen = []

    def look(source, target):
        seen.append(loras.weight_names(folder.path))
        return move(source, target)

    monkeypatch.setattr(run_folder, "move_atomically", look)
    folder.move_into_place(written)
    assert seen == [{"model.safetensors"}, {"model.safetensors", shards[0]}, set(shards)]
    assert loras.weight_names(folder.path) == {*shards, "model.safetensors.index.json"}


def test_a_crashed_run_is_kept_without_what_a_kill_left_while_saving(place, trained_model):
    simulate_kill(InModelFolder(place), "a", 4)
    leftover = place.folders.models / "a" / ".part" / "lora"
    leftover.mkdir(parents=True)
    (leftover / "model.safetensors").write_text("half")
    (run,) = find_crashed_runs(place.folders)
    keep_run(run, place.folders)
    assert not (run.folder / "model.safetensors").exists()


def test_a_crashed_run_is_listed_and_can_be_kept(place, trained_model):
    simulate_kill(InModelFolder(place), "a", 4)
    (run,) = find_crashed_runs(place.folders)
    assert (run.name, run.folder, run.safe_step) == ("a", place.folders.models / "a", 4)
    keep_run(run, place.folders)
    saved = StandaloneHost(place.folders, model="a").loaded_model().model.state_dict()
    place.train(name="b", **FULL, epochs=1)
    expected = StandaloneHost(place.folders, model="b").loaded_model().model.state_dict()
    assert all(torch.equal(value, expected[name]) for name, value in saved.items())
    assert find_crashed_runs(place.folders) == []


def test_it_is_refused_inside_the_webui(place):
    host = place.host()
    host.owns_process = False
    with pytest.raises(SettingsError, match=r"full fine-tuning is not possible inside the webui"):
        place.train(host, **FULL)
    report = PeftEngine().check(place.settings(**FULL), host)
    assert report.verdict == "not ready"
    assert host._loaded is None


@pytest.mark.parametrize("loading", ["8bit", "4bit"])
def test_quantized_weights_cannot_be_trained(place, loading):
    with pytest.raises(SettingsError, match=f"a model loaded in {loading[0]}-bit can't be fully fine-tuned"):
        place.train(place.host(loading), **FULL)


def test_lora_settings_and_the_name_of_the_model_itself_are_refused(place):
    with pytest.raises(SettingsError, match=r"apply only to a LoRA: DoRA\. Reset them"):
        place.train(**FULL, dora=True)
    with pytest.raises(SettingsError, match="is the name of the model that you are training"):
        place.train(name="tiny", **FULL)


@pytest.mark.parametrize(
    ("failing", "unloaded"),
    [("training_pro.engine.training.run.probe_model", False), ("training_pro.engine.training.run._train", True)],
)
def test_after_an_error_the_model_is_unloaded_if_it_was_trained_by_then(place, monkeypatch, failing, unloaded):
    host = place.host()
    host.loaded_model()
    monkeypatch.setattr(failing, lambda *_: (_ for _ in ()).throw(KeyError))
    with pytest.raises(KeyError):
        place.train(host, **FULL)
    assert (host._loaded is None) is unloaded


def test_an_existing_model_is_called_a_model(place):
    shutil.copytree(place.tiny, place.folders.models / "there")
    with pytest.raises(SettingsError, match="'there' already exists: a model made elsewhere"):
        place.train(name="there", **FULL)
    with pytest.raises(SavingError, match=r"'there' is a model without a checkpoint .* load it as the model"):
        place.train(name="there", **FULL, if_exists="continue")


def test_check_estimates_the_memory_of_all_weights(place):
    def memory(**more):
        return PeftEngine().check(place.settings(**more), place.host()).memory

    lora, full = memory(), memory(**FULL)
    assert full.lora == 0
    assert full.gradients == full.weights
    assert full.optimizer == 2 * full.weights > lora.optimizer


def test_a_probe_leaves_the_model_unchanged(place):
    host = place.host()
    before = {n: p.clone() for n, p in host.loaded_model().model.state_dict().items()}
    PeftEngine().probe(place.settings(**FULL), host, Job("probe", "a test"))
    assert all(torch.equal(value, before[name]) for name, value in host.loaded_model().model.state_dict().items())


def test_a_lora_that_was_on_is_unloaded_with_the_model_and_a_note_says_so(with_lora):
    host, job = with_lora.host(), Job("training", "a test")
    with_lora.attach_lora(host, "a")
    with_lora.train(host, job=job, **{**FULL, "name": "b", "max_steps": 1})
    assert host.model_status().loras == ()
    notes = [getattr(event, "text", "") for event in job.log.since(0)]
    (note,) = [note for note in notes if "changed the weights of the loaded model" in note]
    assert note.endswith(" a is detached. Attach it again after the model is loaded.")
