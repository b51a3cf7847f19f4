"""Optimizers by name, and NEFTune: supported ones take steps, others are refused before anything starts."""

from __future__ import annotations

from importlib.metadata import version

import pytest
import torch
from training_pro.core.errors import SettingsError
from training_pro.engine.checks import optimizer_problems
from training_pro.engine.compute import add_neftune_noise, collate
from training_pro.settings.definitions import SETTINGS
from training_pro.tests.engine.architectures import random_examples

DECLARED = tuple(SETTINGS["optimizer"].choices)


def test_every_declared_name_is_known_to_transformers():
    pytest.importorskip("bitsandbytes")
    from transformers.training_args import OptimizerNames

    assert set(DECLARED) <= {name.value for name in OptimizerNames}
    assert [problem for name in DECLARED for problem in optimizer_problems(name, "cuda")] == []


@pytest.mark.parametrize("name", [*DECLARED, "rmsprop", "adagrad"])
def test_an_optimizer_steps_or_is_refused_where_bitsandbytes_needs_a_gpu(place, name):
    needs_gpu = "paged" in name or ("8bit" in name and version("bitsandbytes") < "0.50")
    if needs_gpu:
        with pytest.raises(SettingsError, match=f"Optimizer: {name} needs a GPU"):
            place.train(optimizer=name, max_steps=1)
    else:
        place.train(optimizer=name, max_steps=1, save_each_epoch=False, learning_rate=1e-3)
    assert place.lora().exists() is not needs_gpu


@pytest.mark.parametrize(
    ("name", "sentence"),
    [
        ("adamw_torhc", "transformers has no optimizer called 'adamw_torhc'. Did you mean adamw_torch?"),
        ("galore_adamw", "galore_adamw does not work here: it is an alternative to LoRA and can't train a LoRA."),
        ("grokadamw", "grokadamw needs the grokadamw package (pip install grokadamw)."),
        ("stable_adamw", "stable_adamw needs the optimi package (pip install torch-optimi)."),
        ("schedule_free_adamw", "schedule_free_adamw does not work here: it averages the weights over many steps"),
    ],
)
def test_unsupported_optimizers_are_refused_together_with_problems_of_the_data(place, name, sentence):
    """All problems at once, before the model is loaded."""
    host = place.host()
    with pytest.raises(SettingsError) as error:
        place.train(host, optimizer=name, data=["nowhere.txt"])
    data, *others = error.value.problems
    assert data.startswith("Dataset: there is no dataset named 'nowhere.txt'")
    assert any(problem.startswith(f"Optimizer: {sentence}") for problem in others)
    assert host.model_status().problem  # it is not loaded


@pytest.mark.parametrize("in_one_row", [False, True])
def test_the_noise_of_a_token_depends_on_the_length_of_its_example_and_is_removed(in_one_row):
    torch.manual_seed(0)
    embeddings, batch = torch.nn.Embedding(200, 16), collate(random_examples(4, 400), in_one_row=in_one_row)
    clean = embeddings(batch.inputs["input_ids"])
    with add_neftune_noise(embeddings, 5.0, batch):
        difference = (embeddings(batch.inputs["input_ids"]) - clean).abs()
    short, long = (difference[0, :4], difference[0, 4:] if in_one_row else difference[1])
    assert 0.9 * 5 / 8 < float(short.max()) <= 5 / 8
    assert 0.9 * 5 / 80 < float(long.max()) <= 5 / 80
    assert torch.equal(embeddings(batch.inputs["input_ids"]), clean)


def test_a_run_with_noise_is_reproducible_and_differs_from_one_without(place):
    for name, alpha in (("a", 5), ("b", 5), ("c", 0)):
        place.train(name=name, neftune_noise=alpha, max_steps=2, save_each_epoch=False)
    assert place.weights("a") == place.weights("b") != place.weights("c")
