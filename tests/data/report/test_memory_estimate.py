"""The memory model of a run, and the settings that are changed so that it fits: arithmetic without a GPU."""

from __future__ import annotations

from dataclasses import replace

import pytest
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import MemoryModel, fit_to_memory, largest_batch, uses_checkpointing
from training_pro.settings.parsing import training_settings

GB = 10**9
EIGHT_B = {
    "model_type": "llama",
    "hidden_size": 4096,
    "num_hidden_layers": 32,
    "intermediate_size": 14336,
    "num_attention_heads": 32,
    "num_key_value_heads": 8,
    "vocab_size": 128256,
    "tie_word_embeddings": False,
    "dtype": "bfloat16",
}


class FakeExamples:
    def __init__(self, *lengths):
        self._lengths = list(lengths)

    def lengths(self):
        return self._lengths

    def learned(self):
        return [n - 1 for n in self._lengths]


def memory_model(free, loading="auto", device="NVIDIA Some Card", length=1024):
    machine = DeviceMemory(device, 0, int(free * GB))
    model = MemoryModel.of(ModelCard("m", EIGHT_B, None, loading), FakeExamples(*[length] * 64), machine)
    assert model is not None
    return model


def settings(**more):
    return training_settings({"name": "a", "data": ["x"], **more})


@pytest.mark.parametrize(("free", "on"), [(80, False), (24, True), (0, True)])
def test_auto_checkpointing_is_on_where_a_run_would_not_fit_without(free, on):
    assert uses_checkpointing(memory_model(free), settings()) is on
    assert uses_checkpointing(memory_model(free), settings(gradient_checkpointing="off")) is False
    assert uses_checkpointing(memory_model(free), settings(gradient_checkpointing="on")) is True


def test_auto_checkpointing_is_off_on_a_cpu():
    assert uses_checkpointing(memory_model(1, device="CPU"), settings()) is False


def test_memory_that_the_model_holds_counts_as_free():
    assert DeviceMemory("a card", used=20, total=24, reserved=18).free == 22


def test_nothing_changes_where_the_run_fits():
    assert fit_to_memory(memory_model(80), settings()) == {}


def test_the_cheapest_changes_are_chosen_and_the_product_stays():
    model = memory_model(24, "4bit")
    requested = settings(batch_size=16, gradient_checkpointing="off")
    changes = fit_to_memory(model, requested)
    assert changes["batch_size"] * changes["accumulation"] == 16
    assert changes.keys() <= {"batch_size", "accumulation", "gradient_checkpointing", "optimizer"}
    sections = {"steps": {}, "machine": {}, "learning": {}}
    for name in sections:
        section = getattr(requested, name)
        sections[name] = replace(section, **{k: v for k, v in changes.items() if hasattr(section, k)})
    assert model.fits(model.memory(replace(requested, **sections)))


@pytest.mark.parametrize(
    ("loading", "tied", "optimizer", "bytes_each"),
    [
        ("bfloat16", False, "adamw_torch", (2, 2, 4)),
        ("bfloat16", True, "adamw_torch", (2, 2, 4)),
        ("bfloat16", False, "adamw_8bit", (2, 2, 2)),
        ("float32", False, "adamw_torch", (4, 4, 8)),
        ("float32", False, "sgd", (4, 4, 0)),
    ],
)
def test_a_trained_head_has_the_models_dtype_and_counts_once_where_it_is_tied(
    loading, tied, optimizer, bytes_each
):
    card = ModelCard("m", {**EIGHT_B, "tie_word_embeddings": tied}, None, loading)
    model = MemoryModel.of(card, FakeExamples(1024), DeviceMemory("NVIDIA Some Card", 0, 80 * GB))
    without, with_head = (model.memory(settings(train_head=asked, optimizer=optimizer)) for asked in (False, True))
    weights = 128256 * 4096 * (1 if tied else 2)
    added = tuple(getattr(with_head, part) - getattr(without, part) for part in ("lora", "gradients", "optimizer"))
    assert added == tuple(weights * each for each in bytes_each)


def test_train_head_gets_an_8_bit_optimizer_where_memory_is_short():
    requested = settings(train_head=True, batch_size=1, gradient_checkpointing="on")
    need = memory_model(500).memory(requested).total / GB
    assert fit_to_memory(memory_model(need * 0.98), requested) == {"optimizer": "adamw_8bit"}


def test_no_changes_where_the_weights_alone_do_not_fit():
    assert fit_to_memory(memory_model(10), settings()) == {}


def test_the_largest_batch_grows_with_the_memory_and_shrinks_with_the_measured_scale():
    small, large = largest_batch(memory_model(24), settings()), largest_batch(memory_model(80), settings())
    assert 0 < small < large
    assert largest_batch(memory_model(80), settings(), scale=2.0) < large
    assert largest_batch(memory_model(0), settings()) == 0
