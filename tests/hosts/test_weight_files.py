"""A model given as one file of weights, and a tokenizer of its own."""

from __future__ import annotations

import json
import shutil

import pytest
import torch
from safetensors.torch import load_file, save_file
from training_pro.commands.main import main
from training_pro.core.errors import ModelError, SettingsError
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.train import cli_command
from training_pro.settings.parsing import training_settings


@pytest.fixture
def model(tiny, place):
    """The tiny model in the models folder."""
    return shutil.copytree(tiny, place.folders.models / "mine")


def host(place, model, **more):
    return StandaloneHost(place.folders, model=str(model), **more)


def weights_of(host):
    return host.loaded_model().model.state_dict()


def write_bin(model, *, factor=1.0):
    state = load_file(model / "model.safetensors")
    torch.save({name: factor * weight for name, weight in state.items()}, model / "pytorch_model.bin")


@pytest.mark.parametrize("path", ["mine", "mine/model.safetensors"])
def test_a_single_file_is_the_model_of_its_folder(place, model, path):
    by_name, by_path = host(place, path), host(place, model.parent / path)
    for chosen in (by_name, by_path):
        assert chosen.card().name == "mine"
        assert all(
            torch.equal(weight, weights_of(chosen)[n]) for n, weight in weights_of(host(place, model)).items()
        )


def test_a_folder_with_pytorch_model_bin_alone_trains(place, model):
    write_bin(model)
    (model / "model.safetensors").unlink()
    for name in ("mine", "mine/pytorch_model.bin"):
        assert place.train(host(place, name), max_steps=1, if_exists="replace").outcome == "finished"


def test_of_two_files_the_one_that_is_named_is_loaded(place, model):
    write_bin(model, factor=2.0)
    chosen, other = (weights_of(host(place, model / name)) for name in ("pytorch_model.bin", "model.safetensors"))
    assert torch.equal(chosen["lm_head.weight"], 2 * other["lm_head.weight"])


@pytest.mark.parametrize("name", ["model-00001-of-00002.safetensors", "lone/model.safetensors"])
def test_a_part_and_a_file_without_its_config_are_refused(place, model, name):
    (model / "lone").mkdir()
    save_file({"a": torch.ones(1)}, model / name)
    with pytest.raises(
        ModelError, match=r"can't be loaded on its own\. A single weights file must be called model\."
    ):
        host(place, model / name).card()


@pytest.fixture
def other_tokenizer(model, place):
    """A tokenizer whose end token is another one; the model's own is gone."""
    folder = place.folders.models / "words"
    folder.mkdir()
    for file in model.glob("tokenizer*"):
        shutil.move(file, folder)
    config = json.loads((folder / "tokenizer_config.json").read_text())
    (folder / "tokenizer_config.json").write_text(json.dumps(config | {"eos_token": "<|im_start|>"}))
    return folder


def test_a_tokenizer_of_its_own_is_used_logged_and_merged_with_the_model(place, model, other_tokenizer, tmp_path):
    for name in ("words", str(other_tokenizer), str(other_tokenizer / "tokenizer.json")):
        assert host(place, model, tokenizer=name).card().tokenizer.eos_token == "<|im_start|>"
    place.train(host(place, model, tokenizer="words"), max_steps=1)
    assert json.loads((place.lora() / "training_log.json").read_text())["tokenizer"] == "words"
    arguments = ["--user-data", str(place.folders.user_data), "--model", "mine", "--tokenizer", "words"]
    assert main(["merge", *arguments, "--lora", "a", "--out", str(tmp_path / "new")]) == 0
    assert "<|im_start|>" in (tmp_path / "new" / "tokenizer_config.json").read_text()


def test_the_commands_take_it(place, model, other_tokenizer, capsys):
    arguments = ["--user-data", str(place.folders.user_data), "--model", "mine", "--tokenizer", "words"]
    assert main(["slice", str(place.folders.datasets / "story.txt"), *arguments]) == 0
    assert main(["check", *arguments, "--name", "a", "--data", "story.txt"]) == 0
    assert main(["page", "--tokenizer", "words", "--user-data", str(place.folders.user_data)]) == 1
    assert "--tokenizer needs --model" in capsys.readouterr().err


def test_another_model_does_not_get_it(place, model, other_tokenizer, tiny):
    chosen = host(place, model, tokenizer="words")
    chosen.select_model(str(tiny), "auto")
    assert chosen.card().tokenizer.eos_token != "<|im_start|>"
    chosen.select_model(str(model), "float32")
    assert chosen.card().tokenizer.eos_token == "<|im_start|>"


def test_one_that_is_missing_broken_or_too_large_is_refused(place, model, other_tokenizer):
    for name, reason in (("none", "There is no tokenizer"), (str(place.folders.datasets), "can't be read")):
        with pytest.raises(ModelError, match=reason):
            host(place, model, tokenizer=name).card()
    config = json.loads((model / "config.json").read_text())
    (model / "config.json").write_text(json.dumps(config | {"vocab_size": 100}))
    with pytest.raises(
        ModelError, match=r"The tokenizer 'words' has \d+ tokens, but mine has a vocabulary of only 100\. Use"
    ):
        host(place, model, tokenizer="words").card()


@pytest.mark.parametrize(
    ("key", "reason"),
    [
        ("tokenizer_name", "In the webui and on the page, a run uses the tokenizer of the loaded model."),
        ("tokenizer", "In the webui and on the page, a run uses the tokenizer of the loaded model."),
        (
            "model_name",
            "Choose the model on the page, in the webui's Model tab, or on the command line",
        ),
        (
            "compute_type",
            "Choose how to load the model: on the page, in the webui's Model tab",
        ),
    ],
)
def test_as_a_setting_it_is_refused_with_the_place_where_it_is_chosen(key, reason):
    with pytest.raises(SettingsError) as refused:
        training_settings({"name": "a", "data": ["a.txt"], key: "x"})
    assert f"Unknown setting {key!r}. {reason}" in str(refused.value)


def test_the_command_for_a_form_names_it(place, model, other_tokenizer):
    flags = cli_command._model_flags(host(place, model, tokenizer="words"))
    assert flags == ("--model", "mine", "--tokenizer", "words")
