"""Runs, checkpoints, a queue and a settings file of version 1.0.0, from before the packages were regrouped."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from training_pro.records.folder import inventory
from training_pro.records.queue import queue
from training_pro.settings import files
from training_pro.settings.parsing import training_settings
from training_pro.tests.engine.watching import read

WRITTEN = Path(__file__).parents[1] / "fixtures" / "version_1_0_0"
SETTINGS = {"epochs": 2, "dropout": 0.1, "learning_rate": 5e-3, "rank": 2, "targets": "q-v", "eval_share": 0.3}


@pytest.fixture
def older(place):
    """A working folder with everything that the older version left."""
    shutil.copytree(WRITTEN / "loras", place.folders.loras)
    shutil.copy(WRITTEN / "queue.json", place.folders.queue)
    return place


def test_its_runs_queue_and_settings_are_read(older):
    runs = {run.name: (run.status, run.step, run.model) for run in inventory.list_entries(older.folders)}
    assert runs == {
        "crashed": ("cut off", 2, "tiny"),
        "finished": ("finished", 6, "tiny"),
        "stopped": ("stopped", 2, "tiny"),
    }
    loss = inventory.read_entry(older.lora("finished"), older.folders).loss
    assert loss == read(WRITTEN / "loras" / "finished" / "training_log.json")["smoothed_loss"]
    waiting = queue.load(older.folders.queue).waiting
    assert [(run.name, run.model, run.steps) for run in waiting] == [("first", "tiny", 5), ("second", "tiny", 8)]
    assert training_settings(waiting[1].values).steps.epochs == 3
    settings = training_settings(files.load_settings(WRITTEN / "settings.json").values)
    assert (settings.what.name, settings.steps.epochs, settings.learning.schedule) == ("asked", 3, "cosine")


@pytest.mark.parametrize("name", ["stopped", "crashed"])
def test_its_unfinished_runs_are_continued(older, name):
    """To the same LoRA as the older version's uninterrupted run: to rounding, since processors differ."""
    ended = older.train(name=name, if_exists="continue", **SETTINGS)
    assert (ended.outcome, ended.folder) == ("finished", older.lora(name))
    files = (older.lora(run) / "adapter_model.safetensors" for run in (name, "finished"))
    continued, uninterrupted = map(load_file, files)
    assert continued.keys() == uninterrupted.keys()
    assert all(torch.allclose(continued[key], uninterrupted[key], atol=1e-5) for key in continued)
