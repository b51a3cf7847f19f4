"""The disk estimate against the files that a run writes, and the sentences of Check."""

from __future__ import annotations

import json
import re
from dataclasses import replace

import pytest
from training_pro.core.findings import texts
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import estimate_disk
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.settings.parsing import training_settings
from training_pro.train_utils import StepPlan

EIGHT = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
}


GIGABYTES = 10**9
CARD = DeviceMemory("NVIDIA", 0, 80 * GIGABYTES)


def estimate(tmp_path, machine=None, loading="", **more):
    settings = training_settings({"name": "a", "data": ["x.txt"], **more})
    plan = StepPlan(400, 4, 1, settings.steps.epochs)
    return estimate_disk(settings, ModelCard("m", EIGHT, None, loading), plan, tmp_path / "not" / "there", machine)


def test_a_checkpoint_of_an_eight_billion_model_is_a_gigabyte(tmp_path):
    disk = estimate(tmp_path, epochs=6)
    assert disk.made == pytest.approx(336e6, rel=0.01)
    assert disk.checkpoint == pytest.approx(1.0e9, rel=0.02)
    assert (disk.full_copies, disk.shrunk, disk.free > 0) == (6, 3, True)
    # Three full checkpoints, the one being written, two backups, three slim ones and the LoRA.
    assert disk.most == pytest.approx(6 * disk.checkpoint + 4 * disk.made, rel=0.001)
    assert re.match(
        r"at most 7\.\d+ GB \(LoRA 336 MB, up to 6 checkpoints and backups of 1\.01 GB each, "
        r"3 older checkpoints of 336 MB\); ",
        disk.words(),
    )


def test_the_estimate_is_what_is_written(place):
    settings = place.settings(epochs=5, keep_checkpoints=2, save_every=2, rank=64)
    disk = PeftEngine().check(settings, place.host()).disk
    place.train(epochs=5, keep_checkpoints=2, save_every=2, rank=64)
    folders = [p for p in place.lora().iterdir() if p.is_dir()]
    full = [c.folder for c in loras.checkpoints(place.lora())]
    assert (disk.shrunk, len(folders), len(full)) == (8, 10, 2)
    assert loras.size_on_disk(full[0]) == pytest.approx(disk.checkpoint, rel=0.1)
    assert loras.size_on_disk(place.lora()) < disk.most


@pytest.mark.parametrize(
    ("machine", "loading", "bytes_each"), [(CARD, "", 2), (None, "bfloat16", 2), (None, "", 4)]
)
def test_a_whole_model_is_written_in_its_own_dtype(tmp_path, machine, loading, bytes_each):
    disk = estimate(tmp_path, machine, loading, method="full")
    assert disk.made == pytest.approx(bytes_each * 8.03e9, rel=0.01)
    assert disk.checkpoint == 3 * disk.made
    assert "(model " in disk.words()
    assert texts(replace(disk, free=round(disk.made * 1.1)).findings(), "problem") == ()
    (problem,) = texts(replace(disk, free=disk.made).findings(), "problem")
    assert problem.startswith("Disk: the model needs ") and "train a LoRA" in problem


@pytest.mark.parametrize("more", [{"method": "full", "learning_rate": 1e-3}, {"train_head": True}])
def test_the_estimate_in_sixteen_bits_is_what_is_written(place, more):
    more = {"epochs": 2, "max_steps": 2, "save_every": 1, **more}
    host, settings = place.host("bfloat16"), place.settings(**more)
    disk = PeftEngine().check(settings, host).disk
    folder = place.train(host, **more).folder
    (full,) = [c.folder for c in loras.checkpoints(folder) if c.step == 1]
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert weights == pytest.approx(disk.made, rel=0.05)
    assert (full / "optimizer.pt").stat().st_size == pytest.approx(disk.checkpoint - disk.made, rel=0.1)


def test_the_state_of_a_paged_optimizer_is_written_too(tmp_path):
    assert (
        estimate(tmp_path, optimizer="paged_adamw_8bit").checkpoint
        == estimate(tmp_path, optimizer="adamw_8bit").checkpoint
    )


def test_check_refuses_a_full_disk_and_advises_where_space_is_short(place, monkeypatch):
    import shutil

    usage = shutil.disk_usage(place.folders.user_data)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=1_000_000))
    report = PeftEngine().check(place.settings(), place.host())
    assert report.verdict == "not ready"
    assert report.problems[-1].startswith("Disk: the LoRA needs 2.")
    tight = report.disk.made + 2_100_000
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage._replace(free=tight))
    report = PeftEngine().check(place.settings(save_every=1), place.host())
    assert report.problems == ()
    assert [a for a in report.advice if a.startswith("Disk: the run may need up to 2.")]
    assert "free" not in json.loads(json.dumps(report.as_json()))["disk"]


def test_an_inexact_estimate_never_refuses(tmp_path):
    disk = estimate(tmp_path, targets=["special_proj"])
    assert not texts(replace(disk, free=0).findings(), "problem")


def test_an_unwritable_folder_is_a_problem_before_the_run(place, monkeypatch):
    monkeypatch.setattr("os.access", lambda path, mode: False)
    report = PeftEngine().check(place.settings(), place.host())
    assert any(problem.startswith("Disk: ") and "is not writable" in problem for problem in report.problems)
