"""The disk estimate against the files that a run writes, and the sentences of Check."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from training_pro.core.findings import texts
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import estimate_disk
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.settings.parsing import training_settings
from training_pro.tests.data.report.test_memory_estimate import EIGHT_B
from training_pro.train_utils import StepPlan

CARD = DeviceMemory("NVIDIA", 0, 80 * 10**9)


def estimate(folder, machine=None, loading="", **more):
    settings = training_settings({"name": "a", "data": ["x.txt"], **more})
    plan = StepPlan(400, 4, 1, settings.steps.epochs)
    card = ModelCard("m", {**EIGHT_B, "dtype": None}, None, loading)
    return estimate_disk(settings, card, plan, folder / "not" / "there", machine)


def told(disk, free, level="problem"):
    return texts(replace(disk, free=round(free)).findings(), level)


def test_a_checkpoint_of_an_eight_billion_model_is_a_gigabyte(tmp_path):
    disk = estimate(tmp_path, epochs=6)
    assert disk.made == pytest.approx(336e6, rel=0.01) and disk.checkpoint == pytest.approx(1.0e9, rel=0.02)
    assert (disk.full_copies, disk.shrunk, disk.free > 0) == (6, 3, True)
    # Three full checkpoints, the one being written, two backups, three slim ones and the LoRA.
    assert disk.most == pytest.approx(6 * disk.checkpoint + 4 * disk.made, rel=0.001)
    assert re.match(r"at most 7\.\d+ GB \(LoRA 336 MB, up to 6 checkpoints and backups of 1\.01 GB", disk.words())
    paged, plain = (estimate(tmp_path, optimizer=name) for name in ("paged_adamw_8bit", "adamw_8bit"))
    assert paged.checkpoint == plain.checkpoint


@pytest.mark.parametrize(
    ("machine", "loading", "bytes_each"), [(CARD, "", 2), (None, "bfloat16", 2), (None, "", 4)]
)
def test_a_whole_model_is_written_in_its_own_dtype(tmp_path, machine, loading, bytes_each):
    disk = estimate(tmp_path, machine, loading, method="full")
    assert disk.made == pytest.approx(bytes_each * 8.03e9, rel=0.01) and disk.checkpoint == 3 * disk.made
    assert "(model " in disk.words() and told(disk, disk.made * 1.1) == ()
    (problem,) = told(disk, disk.made)
    assert problem.startswith("Disk: the model needs ") and "train a LoRA" in problem


def test_the_estimate_is_what_is_written_and_a_full_disk_is_refused(place):
    values = {"epochs": 5, "keep_checkpoints": 2, "save_every": 2, "rank": 64}
    disk = PeftEngine().check(place.settings(**values), place.host()).disk
    place.train(**values)
    folders, full = [p for p in place.lora().iterdir() if p.is_dir()], loras.checkpoints(place.lora())
    assert (disk.shrunk, len(folders), len(full)) == (8, 10, 2)
    assert loras.size_on_disk(full[0].folder) == pytest.approx(disk.checkpoint, rel=0.1)
    assert loras.size_on_disk(place.lora()) < disk.most
    assert told(disk, 1_000_000)[-1].startswith("Disk: the LoRA needs ")
    assert told(disk, disk.made + 2_100_000) == ()
    assert told(disk, disk.made + 2_100_000, "advice")[0].startswith("Disk: the run may need up to ")


@pytest.mark.parametrize("more", [{"method": "full", "learning_rate": 1e-3}, {"train_head": True}])
def test_the_estimate_in_sixteen_bits_is_what_is_written(place, more):
    more = {"epochs": 2, "max_steps": 2, "save_every": 1, **more}
    host = place.host("bfloat16")
    disk = PeftEngine().check(place.settings(**more), host).disk
    folder = place.train(host, **more).folder
    (full,) = [c.folder for c in loras.checkpoints(folder) if c.step == 1]
    weights = sum(path.stat().st_size for path in folder.glob("*.safetensors"))
    assert weights == pytest.approx(disk.made, rel=0.05)
    assert (full / "optimizer.pt").stat().st_size == pytest.approx(disk.checkpoint - disk.made, rel=0.1)


def test_an_inexact_estimate_never_refuses_but_an_unwritable_folder_does(tmp_path, place, monkeypatch):
    assert not told(estimate(tmp_path, targets=["special_proj"]), 0)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    report = PeftEngine().check(place.settings(), place.host())
    assert any(problem.startswith("Disk: ") and "is not writable" in problem for problem in report.problems)
