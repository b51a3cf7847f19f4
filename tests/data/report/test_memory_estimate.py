"""What Check expects of memory and disk, and the settings that are changed so that a run fits."""

from __future__ import annotations

import re
from dataclasses import replace

import pytest
from training_pro.core.files import folder_size
from training_pro.core.findings import texts
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import (
    MemoryModel,
    apply_changes,
    estimate_disk,
    fit_to_memory,
    resolve_checkpointing,
)
from training_pro.engine.lora import add_param_count
from training_pro.engine.peft_engine import PeftEngine
from training_pro.records.folder import loras
from training_pro.settings.parsing import training_settings
from training_pro.train_utils import StepPlan

GB = 10**9
EIGHT_B = {
    **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False},
    "dtype": "bfloat16",
}


class FakeExamples:
    """Examples of these lengths, all of whose tokens but the first are trained on."""

    are_compared = False

    def __init__(self, *lengths):
        self.all_lengths = list(lengths)

    def lengths(self):
        return self.all_lengths

    def learned(self):
        return [n - 1 for n in self.all_lengths]


def memory_model(free, loading="auto", device="NVIDIA Some Card", **config):
    machine, card = DeviceMemory(device, 0, int(free * GB)), ModelCard("m", {**EIGHT_B, **config}, None, loading)
    return MemoryModel.of(card, FakeExamples(*[1024] * 64), machine)


def settings(**more):
    return training_settings({"name": "a", "data": ["x"], **more})


def test_auto_checkpointing_is_on_where_a_run_would_not_fit_without():
    found = [resolve_checkpointing(memory_model(free), settings()) for free in (80, 40, 24, 0)]
    assert found == ["off", "half", "on", "on"]
    assert resolve_checkpointing(memory_model(1, device="CPU"), settings()) == "off"
    model, asked = memory_model(80), [settings(gradient_checkpointing=w) for w in ("off", "half", "on", "offload")]
    assert [resolve_checkpointing(model, each) for each in asked] == ["off", "half", "on", "offload"]
    totals = [model.memory(each).total for each in asked]
    assert totals == sorted(totals, reverse=True) and len({*totals}) == 4
    assert DeviceMemory("a card", used=20, total=24, reserved=18).free == 22  # what the model holds counts as free


def test_the_cheapest_changes_are_chosen_and_the_product_stays():
    assert fit_to_memory(memory_model(80), settings()) == {} == fit_to_memory(memory_model(10), settings())
    model, requested = memory_model(24, "4bit"), settings(batch_size=16, gradient_checkpointing="off")
    changes = fit_to_memory(model, requested)
    assert changes["batch_size"] * changes["accumulation"] == 16
    assert changes.keys() <= {"batch_size", "accumulation", "gradient_checkpointing", "optimizer"}
    assert model.fits(model.memory(apply_changes(requested, changes)))
    pairs = settings(batch_size=6, gradient_checkpointing="off", batching="length_then_order", switch_pairs=True)
    assert fit_to_memory(memory_model(16, "4bit"), pairs).get("batch_size", 2) % 2 == 0


@pytest.mark.parametrize(
    ("loading", "tied", "optimizer", "bytes_each"),
    [
        ("bfloat16", False, "adamw_torch", (2, 2, 4)),
        ("bfloat16", True, "adamw_8bit", (2, 2, 2)),
        ("float32", False, "adamw_torch", (4, 4, 8)),
        ("float32", False, "sgd", (4, 4, 0)),
    ],
)
def test_a_trained_head_has_the_models_dtype_and_counts_once_where_it_is_tied(
    loading, tied, optimizer, bytes_each
):
    model = memory_model(80, loading, tie_word_embeddings=tied)
    without, with_head = (model.memory(settings(train_head=asked, optimizer=optimizer)) for asked in (False, True))
    weights = 128256 * 4096 * (1 if tied else 2)
    added = tuple(getattr(with_head, part) - getattr(without, part) for part in ("lora", "gradients", "optimizer"))
    assert added == tuple(weights * each for each in bytes_each)


CARD = DeviceMemory("NVIDIA", 0, 80 * 10**9)


def estimate(folder, machine=None, loading="", **more):
    settings = training_settings({"name": "a", "data": ["x.txt"], **more})
    plan = StepPlan(400, 4, 1, settings.steps.epochs)
    card = add_param_count(ModelCard("m", {**EIGHT_B, "dtype": None}, None, loading), settings)
    model = MemoryModel.of(card, FakeExamples(1024), machine)
    return estimate_disk(model, settings, plan, folder / "not" / "there")


def told(disk, free, level="problem"):
    return texts(replace(disk, free=round(free)).findings(), level)


def test_a_checkpoint_of_an_eight_billion_model_is_a_gigabyte(tmp_path):
    disk = estimate(tmp_path, epochs=6)
    assert disk.made == pytest.approx(336e6, rel=0.01) and disk.checkpoint == pytest.approx(1.0e9, rel=0.02)
    assert (disk.full_copies, disk.shrunk, disk.free > 0) == (6, 3, True)
    # Three full checkpoints, the one being written, two backups, three slim ones and the LoRA.
    assert disk.most == pytest.approx(6 * disk.checkpoint + 4 * disk.made, rel=0.001)
    assert re.match(r"at most 7\.\d+ GB \(LoRA 336 MB, up to 6 checkpoints and backups of 1\.01 GB", disk.words())
    assert estimate(tmp_path, epochs=6, keep_best="loss").full_copies == 7  # and the best one
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


@pytest.mark.long
def test_the_estimate_is_what_is_written_and_a_full_disk_is_refused(place):
    values = {"epochs": 5, "keep_checkpoints": 2, "save_every": 2, "rank": 64}
    disk = PeftEngine().check(place.settings(**values), place.host()).disk
    place.train(**values)
    folders, full = [p for p in place.lora().iterdir() if p.is_dir()], loras.checkpoints(place.lora())
    assert (disk.shrunk, len(folders), len(full)) == (8, 10, 2)
    assert folder_size(full[0].folder) == pytest.approx(disk.checkpoint, rel=0.1)
    assert folder_size(place.lora()) < disk.most
    assert told(disk, 1_000_000)[-1].startswith("Disk: the LoRA needs ")
    assert told(disk, disk.made + 2_100_000) == ()
    assert told(disk, disk.made + 2_100_000, "advice")[0].startswith("Disk: the run may need up to ")


def test_an_inexact_estimate_never_refuses_but_an_unwritable_folder_does(tmp_path, place, monkeypatch):
    assert not told(estimate(tmp_path, targets=["special_proj"]), 0)
    monkeypatch.setattr("os.access", lambda path, mode: False)
    report = PeftEngine().check(place.settings(), place.host())
    assert any(problem.startswith("Disk: ") and "is not writable" in problem for problem in report.problems)
