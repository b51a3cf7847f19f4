"""Training a finished LoRA further and resuming from an earlier checkpoint; earlier files go into a backup."""

from __future__ import annotations

import datetime
import json
import shutil

import pytest
import torch
from peft import PeftModel
from safetensors.torch import load_file
from training_pro.core.errors import SavingError, SettingsError
from training_pro.core.jobs import Job, Note, Request, RunPlanned, Step
from training_pro.records.folder import loras
from training_pro.tests.tiny import read_tree, watched_job
from transformers import AutoModelForCausalLM

TODAY = f"Backup-{datetime.date.today().isoformat()}"
NO_SAMPLES = {"sample_every": "never"}


def events_of(job, kind):
    return [event for event in job.log.since(0) if isinstance(event, kind)]


def loss_of(place, lora):
    """Loss of a fixed example with this LoRA, computed outside of the run."""
    base = AutoModelForCausalLM.from_pretrained(place.tiny, dtype=torch.float32).eval()
    ids = torch.arange(5, 30)[None]
    with torch.no_grad():
        return float(PeftModel.from_pretrained(base, lora).eval()(ids, labels=ids).loss)


def test_a_finished_lora_is_trained_further_and_a_backup_kept_twice_a_day(with_lora):
    before, job = read_tree(with_lora.lora()), Job("training", "a test")
    end = with_lora.train(if_exists="continue", job=job, **NO_SAMPLES)
    assert end.outcome == "finished"
    event_types = [type(event).__name__ for event in job.log.since(0)]
    note_positions = [
        n for n, e in enumerate(job.log.since(0)) if isinstance(e, Note) and "Continuing to train" in e.text
    ]
    assert note_positions[0] < event_types.index("RunPlanned")  # logged before it starts
    assert [event.step for event in events_of(job, Step)] == [1, 2, 3, 4]
    assert read_tree(with_lora.lora() / TODAY) == before
    first = [e["loss"] for e in json.loads((with_lora.lora() / TODAY / "training_graph.json").read_text())]
    assert events_of(job, Step)[0].loss < first[0] - 0.05  # it begins where the first run ended
    second = {path: data for path, data in read_tree(with_lora.lora()).items() if not path.startswith(TODAY)}
    with_lora.train(if_exists="continue", **NO_SAMPLES)
    assert read_tree(with_lora.lora() / f"{TODAY}-2") == second


def test_it_begins_with_the_same_weights(with_lora):
    before = with_lora.weights()
    with_lora.train(if_exists="continue", max_steps=1, learning_rate=1e-9, **NO_SAMPLES)
    now = load_file(with_lora.lora() / "adapter_model.safetensors")
    then = load_file(with_lora.lora() / TODAY / "adapter_model.safetensors")
    assert max(float((now[key] - then[key]).abs().max()) for key in then) < 1e-7
    assert with_lora.weights() != before


def test_an_old_bin_is_read_too(with_lora):
    folder = with_lora.lora()
    torch.save(load_file(folder / "adapter_model.safetensors"), folder / "adapter_model.bin")
    for name in ("adapter_model.safetensors", "training_log.json"):
        (folder / name).unlink()
    shutil.rmtree(folder / "checkpoint-4-epoch-1")
    assert loras.run_status(folder) == "made elsewhere"
    with_lora.train(if_exists="continue", max_steps=1, learning_rate=1e-9, **NO_SAMPLES)
    assert (folder / TODAY / "adapter_model.bin").is_file()
    now = load_file(folder / "adapter_model.safetensors")
    then = torch.load(folder / TODAY / "adapter_model.bin", weights_only=True)
    assert max(float((now[key] - then[key]).abs().max()) for key in then) < 1e-7


def test_a_bin_that_would_run_something_is_refused(with_lora):
    import pickle

    class Runs:
        def __reduce__(self):
            return (print, ("it ran",))

    folder = with_lora.lora()
    (folder / "adapter_model.safetensors").unlink()
    (folder / "adapter_model.bin").write_bytes(pickle.dumps(Runs()))
    with pytest.raises(SavingError, match="can't be read"):
        with_lora.train(if_exists="continue", **NO_SAMPLES)


def test_another_shape_is_refused_before_anything_is_loaded(with_lora):
    host = with_lora.host()
    host.loaded_model = lambda: pytest.fail("the weights were loaded")
    before = read_tree(with_lora.folders.user_data)
    with pytest.raises(SettingsError) as refusal:
        with_lora.train(host, if_exists="continue", rank=8, alpha=16, dora=True, **NO_SAMPLES)
    assert refusal.value.problems == (
        "LoRA Rank is 4 in the LoRA 'a', but 8 in the settings. "
        "To continue training this LoRA, set LoRA Rank to 4.",
        "LoRA Alpha is 8 in the LoRA 'a', but 16 in the settings. "
        "To continue training this LoRA, set LoRA Alpha to 8.",
        "DoRA is off in the LoRA 'a', but on in the settings. To continue training this LoRA, set DoRA to off.",
    )
    assert read_tree(with_lora.folders.user_data) == before


@pytest.mark.parametrize("targets", ["q-v", "all-linear"])
def test_other_layers_are_refused_and_named(place, targets):
    other = "q-v" if targets == "all-linear" else "all-linear"
    place.train(targets=other, **NO_SAMPLES)
    before = read_tree(place.lora())
    with pytest.raises(SavingError, match=r"can't be trained further .*its layers differ .*\(.*down_proj"):
        place.train(if_exists="continue", targets=targets, **NO_SAMPLES)
    assert read_tree(place.lora()) == before


def test_throwing_the_further_run_away_restores_the_earlier_lora(with_lora):
    before = read_tree(with_lora.lora())
    job = watched_job(lambda job, event: job.control.ask(Request.DISCARD) if isinstance(event, Step) else None)
    with_lora.train(if_exists="continue", job=job, **NO_SAMPLES)
    assert read_tree(with_lora.lora()) == before


def test_resuming_from_an_earlier_checkpoint_moves_the_later_ones_into_a_backup(place):
    place.train(epochs=2, save_every=2, keep_checkpoints=9, **NO_SAMPLES)
    job = Job("training", "a test")
    place.train(epochs=3, save_every=2, resume="checkpoint-2", job=job, **NO_SAMPLES)
    assert events_of(job, RunPlanned)[0].first_step == 2
    later = sorted(p.name for p in (place.lora() / TODAY).iterdir())
    assert later == ["checkpoint-4-epoch-1", "checkpoint-6", "checkpoint-8-epoch-2"]


def test_throwing_such_a_run_away_restores_them(place):
    place.train(epochs=2, save_every=2, keep_checkpoints=9, **NO_SAMPLES)
    before = {p.name for p in place.lora().iterdir()}
    job = watched_job(lambda job, event: job.control.ask(Request.DISCARD) if isinstance(event, Step) else None)
    place.train(epochs=3, save_every=2, resume="checkpoint-2", job=job, **NO_SAMPLES)
    assert {p.name for p in place.lora().iterdir()} == before


def test_files_held_open_that_cannot_be_backed_up_are_named_and_left_complete(with_lora, monkeypatch):
    from pathlib import Path

    before, replace = read_tree(with_lora.lora()), Path.replace

    def fail_if_open(path, target):
        if path.name == "adapter_model.safetensors" and "Backup-" in str(target):
            raise PermissionError(13, "The process cannot access the file", str(path))
        return replace(path, target)

    monkeypatch.setattr(Path, "replace", fail_if_open)
    with pytest.raises(SavingError, match=r"Can't write to .*: adapter_model\.safetensors is read-only"):
        with_lora.train(if_exists="replace", **NO_SAMPLES)
    assert {p: b for p, b in read_tree(with_lora.lora()).items() if not p.startswith(".part")} == before
