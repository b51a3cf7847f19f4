"""A model given as one file of weights, and a tokenizer of its own."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file
from training_pro.commands.main import main
from training_pro.core.errors import ModelError
from training_pro.hosts.standalone import StandaloneHost


@pytest.fixture
def model(tiny, place):
    """The tiny model in the models folder."""
    return shutil.copytree(tiny, place.folders.models / "mine")


def host(place, model, **more):
    return StandaloneHost(place.folders, model=str(model), **more)


def head_of(place, model):
    return host(place, model).loaded_model().model.state_dict()["lm_head.weight"]


def test_a_single_file_is_the_model_of_its_folder_and_of_two_files_the_one_that_is_named(place, model):
    weights = load_file(model / "model.safetensors")
    torch.save({name: 2 * weight for name, weight in weights.items()}, model / "pytorch_model.bin")
    for path in ("mine/model.safetensors", model / "model.safetensors"):
        assert host(place, path).card().name == "mine"
        assert torch.equal(head_of(place, path), weights["lm_head.weight"])
    assert torch.equal(head_of(place, "mine/pytorch_model.bin"), 2 * weights["lm_head.weight"])
    (model / "model.safetensors").unlink()
    assert place.train(host(place, "mine"), max_steps=1).outcome == "finished"


@pytest.fixture
def words(model, place):
    """A tokenizer whose end token is another one; the model's own is gone."""
    folder = place.folders.models / "words"
    folder.mkdir()
    for file in model.glob("tokenizer*"):
        shutil.move(file, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|im_start|>"}))
    return folder


@pytest.mark.long
def test_a_tokenizer_of_its_own_is_used_logged_and_merged_with_the_model(place, model, words, tmp_path, capsys):
    for name in ("words", str(words), str(words / "tokenizer.json")):
        assert host(place, model, tokenizer=name).card().tokenizer.eos_token == "<|im_start|>"
    folder = ["--user-data", str(place.folders.user_data)]
    own = [*folder, "--model", "mine", "--tokenizer", "words"]
    place.train(host(place, model, tokenizer="words"), max_steps=1)
    assert json.loads((place.lora() / "training_log.json").read_text())["tokenizer"] == "words"
    assert main(["merge", *own, "--lora", "a", "--out", str(tmp_path / "new")]) == 0
    assert "<|im_start|>" in (tmp_path / "new" / "tokenizer_config.json").read_text()
    assert main(["slice", str(place.folders.datasets / "story.txt"), *own]) == 0
    assert main(["page", "--tokenizer", "words", *folder]) == 1
    assert "To use --tokenizer, also add --model." in capsys.readouterr().err


def test_one_that_is_missing_broken_or_too_large_is_refused(place, model, words):
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    too_large = r"The tokenizer 'words' has \d+ tokens, but mine has a vocabulary of only 100\. Use"
    broken = str(place.folders.datasets)
    for name, reason in {"none": "There is no tokenizer", broken: "can't be read", "words": too_large}.items():
        with pytest.raises(ModelError, match=reason):
            host(place, model, tokenizer=name).card()
