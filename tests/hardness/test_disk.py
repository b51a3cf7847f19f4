"""A disk that fills within a run, at many places: the run says so, keeps what it has, and leaves no half file."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from training_pro.core.jobs import Advice, CheckpointSaved, Note
from training_pro.engine import saving
from training_pro.records.folder import inventory, loras
from training_pro.tests.engine.watching import at, events_of, texts

RUN = {"epochs": 2, "save_every": 2, "rank": 16, "backup_minutes": 1e-6}
IN_TORCH_SAVE = 431_906
"""With so many free bytes torch.save itself fails, with no word about the disk."""


def fill(disk, leave):
    """Fill the disk, except for `leave` bytes."""
    (disk / "ballast").unlink(missing_ok=True)
    (disk / "ballast").write_bytes(bytes(max(0, shutil.disk_usage(disk).free - leave)))


def refuse_broken(folder):
    """Everything that a run left can be loaded, and nothing is half written."""
    assert not list(folder.rglob("*.part*"))
    for checkpoint in loras.resumable_checkpoints(folder):
        load_file(checkpoint.folder / "adapter_model.safetensors")
        torch.load(checkpoint.folder / "optimizer.pt", weights_only=True)
        saving.load_run_state(checkpoint.folder)
    for file in folder.rglob("*.safetensors"):
        load_file(file)
    for file in folder.rglob("*.json"):
        json.loads(file.read_text(encoding="utf-8"))


@pytest.mark.long
@pytest.mark.parametrize("leave", [0, 226_273, IN_TORCH_SAVE, 485_749])
def test_a_disk_that_fills_within_a_run(place, disk, leave):
    """So many bytes are free after the first step: from none to room for a few checkpoints."""
    job = at({1: lambda job: fill(disk, leave)})
    end = place.train(job=job, **RUN)
    assert end.outcome == "finished" and loras.has_lora(end.folder)
    said = texts(job, Advice, Note)
    assert not [text for text in said if "iostream" in text or "Error" in text]
    assert events_of(job, CheckpointSaved) or any("disk is full" in text for text in said)
    refuse_broken(end.folder)
    if place.lora().is_dir():
        refuse_broken(place.lora())
    assert inventory.list_entries(place.folders) or end.folder != place.lora()


@pytest.mark.long
@pytest.mark.parametrize("is_file", [False, True])
@pytest.mark.parametrize("place_of", ["run", "loras"])
def test_a_folder_that_is_gone_or_a_file_within_a_run(place, is_file, place_of):
    folder = place.lora() if place_of == "run" else place.folders.loras

    def act(job):
        shutil.rmtree(folder, ignore_errors=True)
        if is_file:
            folder.write_text("a file where the folder was")

    job = at({3: act})
    end = place.train(job=job, **RUN)
    assert end.outcome == "finished" and loras.has_lora(end.folder)
    refuse_broken(end.folder)
    assert not [text for text in texts(job, Advice, Note) if "Traceback" in text or "Errno" in text]
