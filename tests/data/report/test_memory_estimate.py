"""The memory model of a run, and the settings that are changed so that it fits: arithmetic without a GPU."""

from __future__ import annotations

import pytest
from training_pro.core.host import DeviceMemory, ModelCard
from training_pro.data.report import MemoryModel, apply_changes, fit_to_memory, largest_batch, uses_checkpointing
from training_pro.settings.parsing import training_settings

GB = 10**9
EIGHT_B = {
    **{"model_type": "llama", "hidden_size": 4096, "num_hidden_layers": 32, "intermediate_size": 14336},
    **{"num_attention_heads": 32, "num_key_value_heads": 8, "vocab_size": 128256, "tie_word_embeddings": False},
    "dtype": "bfloat16",
}


class FakeExamples:
    """Examples of these lengths, all of whose tokens but the first are trained on."""

    def __init__(self, *lengths):
        self.all_lengths = list(lengths)

    def lengths(self):
        return self.all_lengths

    def learned(self):
        return [n - 1 for n in self.all_lengths]


def memory_model(free, loading="auto", device="NVIDIA Some Card", **config):
    machine = DeviceMemory(device, 0, int(free * GB))
    return MemoryModel.of(
        ModelCard("m", {**EIGHT_B, **config}, None, loading), FakeExamples(*[1024] * 64), machine
    )


def settings(**more):
    return training_settings({"name": "a", "data": ["x"], **more})


def test_auto_checkpointing_is_on_where_a_run_would_not_fit_without():
    assert [uses_checkpointing(memory_model(free), settings()) for free in (80, 24, 0)] == [False, True, True]
    assert not uses_checkpointing(memory_model(1, device="CPU"), settings())
    assert not uses_checkpointing(memory_model(0), settings(gradient_checkpointing="off"))
    assert uses_checkpointing(memory_model(80), settings(gradient_checkpointing="on"))
    assert DeviceMemory("a card", used=20, total=24, reserved=18).free == 22  # what the model holds counts as free


def test_the_cheapest_changes_are_chosen_and_the_product_stays():
    assert fit_to_memory(memory_model(80), settings()) == {} == fit_to_memory(memory_model(10), settings())
    model, requested = memory_model(24, "4bit"), settings(batch_size=16, gradient_checkpointing="off")
    changes = fit_to_memory(model, requested)
    assert changes["batch_size"] * changes["accumulation"] == 16
    assert changes.keys() <= {"batch_size", "accumulation", "gradient_checkpointing", "optimizer"}
    assert model.fits(model.memory(apply_changes(requested, changes)))


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


def test_train_head_gets_an_8_bit_optimizer_where_memory_is_short():
    requested = settings(train_head=True, batch_size=1, gradient_checkpointing="on")
    need = memory_model(500).memory(requested).total / GB
    assert fit_to_memory(memory_model(need * 0.98), requested) == {"optimizer": "adamw_8bit"}


def test_the_largest_batch_grows_with_the_memory_and_shrinks_with_the_measured_scale():
    small, large = largest_batch(memory_model(24), settings()), largest_batch(memory_model(80), settings())
    assert 0 < small < large
    assert largest_batch(memory_model(80), settings(), scale=2.0) < large
    assert largest_batch(memory_model(0), settings()) == 0
