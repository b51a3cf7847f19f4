"""Optimizers by name, and NEFTune: supported ones take steps, others are refused before anything starts."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.engine.checks import optimizer_problems
from training_pro.engine.compute import collate
from training_pro.engine.compute.neftune import add_neftune_noise, example_lengths
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.engine.architectures import random_examples

DECLARED = tuple(SETTINGS["optimizer"].choices)
ON_THE_CPU = [name for name in DECLARED if "8bit" not in name]


def test_every_declared_name_is_known_to_transformers():
    pytest.importorskip("bitsandbytes")
    from transformers.training_args import OptimizerNames

    assert set(DECLARED) <= {name.value for name in OptimizerNames}
    assert [problem for name in DECLARED for problem in optimizer_problems(name, "cuda")] == []


@pytest.mark.parametrize("name", ["paged_adamw_8bit", "adamw_8bit", "lion_8bit"])
def test_8_bit_optimizers_step_where_bitsandbytes_can(place, name):
    pytest.importorskip("bitsandbytes")
    if "paged" in name or version("bitsandbytes") < "0.50":
        with pytest.raises(SettingsError, match=f"Optimizer: {name} needs a GPU"):
            place.train(optimizer=name, max_steps=2)
        assert not place.lora().exists()
        return
    place.train(optimizer=name, max_steps=2, save_each_epoch=False)
    assert place.weights()


@pytest.mark.parametrize("name", [*ON_THE_CPU, "rmsprop", "adagrad"])
def test_an_optimizer_steps(place, name):
    place.train(optimizer=name, max_steps=2, save_each_epoch=False, learning_rate=1e-3)
    assert place.weights()


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        (
            "adamw_torhc",
            "Optimizer: transformers has no optimizer called 'adamw_torhc'. Did you mean adamw_torch?",
        ),
        (
            "galore_adamw",
            "Optimizer: galore_adamw does not work here: it is an alternative to LoRA and can't train a LoRA.",
        ),
        ("grokadamw", "Optimizer: grokadamw needs the grokadamw package (pip install grokadamw)."),
        ("stable_adamw", "Optimizer: stable_adamw needs the optimi package (pip install torch-optimi)."),
        ("adamw_anyprecision", "Optimizer: adamw_anyprecision needs the torchdistx package (not on PyPI: https"),
        (
            "adamw_torch_4bit",
            'Optimizer: adamw_torch_4bit needs the torchao package (pip install "torchao<0.18", because',
        ),
        (
            "schedule_free_adamw",
            "Optimizer: schedule_free_adamw does not work here: it averages the weights over many steps",
        ),
    ],
)
def test_unsupported_optimizers_are_refused_together_with_problems_of_the_data(place, name, sentence):
    """All problems at once, before the model is loaded."""
    host = place.host()
    with pytest.raises(SettingsError) as error:
        place.train(host, optimizer=name, data=["nowhere.txt"])
    data, *others = error.value.problems
    assert data.startswith("Dataset: there is no dataset named 'nowhere.txt'")
    assert any(problem.startswith(sentence) for problem in others)
    assert host._loaded is None


def test_the_noise_of_a_token_depends_on_its_example_alone():
    rows = random_examples(4, 9)
    padded, packed = collate(rows, in_one_row=False), collate(rows, in_one_row=True)
    padded_lengths = example_lengths(padded)
    assert padded_lengths.tolist() == [[4.0] * 9, [9.0] * 9]
    assert example_lengths(packed).tolist() == [[4.0] * 4 + [9.0] * 9]


def test_noise_is_bounded_and_is_removed():
    torch.manual_seed(0)
    embeddings, batch = torch.nn.Embedding(200, 16), collate(random_examples(4, 400), in_one_row=True)
    ids = batch.inputs["input_ids"]
    clean = embeddings(ids)
    with add_neftune_noise(embeddings, 5.0, batch):
        difference = (embeddings(ids) - clean).abs()[0]
    assert 0.9 * 5 / 8 < float(difference[:4].max()) <= 5 / 8
    assert 0.9 * 5 / 80 < float(difference[4:].max()) <= 5 / 80
    assert torch.equal(embeddings(ids), clean)


def test_a_run_with_noise_is_reproducible_and_differs_from_one_without(place):
    for name, alpha in (("a", 5), ("b", 5), ("c", 0)):
        place.train(name=name, neftune_noise=alpha, max_steps=2, save_each_epoch=False)
    assert place.weights("a") == place.weights("b") != place.weights("c")
