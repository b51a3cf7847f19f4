"""Our own host: which models there are, how they are loaded, and a sentence for each that cannot be."""

from __future__ import annotations

import json
import shutil
import weakref
from types import SimpleNamespace

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.hosts import standalone
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost, standalone_folders
from transformers import AutoModelForCausalLM


@pytest.fixture
def copy(tiny, tmp_path):
    """The tiny model in the models folder, to be broken."""
    return shutil.copytree(tiny, tmp_path / "user_data" / "models" / "mine")


def host(tmp_path, model="mine", loading="auto"):
    return StandaloneHost(standalone_folders(tmp_path / "user_data"), model=model, loading=loading)


def refusal(host, method="card"):
    with pytest.raises(ModelError) as error:
        getattr(host, method)()
    return str(error.value)


def test_models_are_folders_with_a_config_and_gguf_files(copy, tmp_path):
    models = copy.parent
    (models / "empty").mkdir()
    (models / "Alone.gguf").write_bytes(b"GGUF")
    (models / "quants").mkdir()
    (models / "quants" / "q4.gguf").write_bytes(b"GGUF")
    assert host(tmp_path).models() == ["Alone.gguf", "mine", "quants/q4.gguf"]


def test_no_models_yet(tmp_path):
    assert host(tmp_path).models() == []
    said = refusal(host(tmp_path, model=""))
    models = tmp_path / "user_data" / "models"
    assert (
        said == f"No model is chosen. Copy one to {models}, or download one with the get command, then choose it."
    )


def test_a_model_that_is_there_is_to_be_loaded(copy, tmp_path):
    assert refusal(host(tmp_path, model="")) == (
        "No model is loaded. Choose one and press Load model, or name it with --model. Available: mine."
    )


def test_an_unknown_model_is_named_with_those_there_are(copy, tmp_path):
    text = (
        f"There is no model 'other' in {copy.parent}, and 'other' is not the path of a folder with a "
        "config.json. Available: mine."
    )
    assert refusal(host(tmp_path, "other")) == text


def test_a_folder_that_is_no_model(tmp_path):
    (tmp_path / "folder").mkdir()
    said = refusal(host(tmp_path, str(tmp_path / "folder")))
    assert said.startswith(f"There is no model '{tmp_path / 'folder'}' in ")


@pytest.mark.parametrize("text", ["{broken", "{}", "[1]", '{"model_type": "newfangled"}'])
def test_a_broken_config_is_one_sentence(copy, tmp_path, text):
    (copy / "config.json").write_text(text, encoding="utf-8")
    said = refusal(host(tmp_path))
    assert said.startswith(f"{copy} can't be read as a model: ")
    assert said.endswith(". Download it again, or choose another one.")
    assert "\n" not in said


def test_a_broken_tokenizer_is_one_sentence(copy, tmp_path):
    (copy / "tokenizer.json").write_text("{broken", encoding="utf-8")
    assert refusal(host(tmp_path)).startswith(f"{copy} can't be read as a model: ")


@pytest.mark.parametrize("weights", [None, b"x" * 100])
def test_missing_or_broken_weights_are_one_sentence(copy, tmp_path, weights):
    (copy / "model.safetensors").unlink()
    if weights is not None:
        (copy / "model.safetensors").write_bytes(weights)
    broken = host(tmp_path)
    assert broken.card().name == "mine"
    said = refusal(broken, "loaded_model")
    assert said.startswith("mine can't be loaded as auto: ")
    assert "\n" not in said


@pytest.mark.parametrize(
    "error", [torch.cuda.OutOfMemoryError("CUDA out of memory.\nMore."), MemoryError(), RuntimeError("odd")]
)
def test_where_memory_runs_out_while_it_loads_it_is_said_what_may_help(copy, tmp_path, monkeypatch, error):
    def fails(*_, **__):
        raise error

    own = host(tmp_path)
    own.load("mine", "auto")
    monkeypatch.setattr(AutoModelForCausalLM, "from_pretrained", fails)
    with pytest.raises(ModelError) as refusal:
        own.load("mine", "float32")
    helps = "" if str(error) == "odd" else " Load it in 4-bit, or choose a smaller model."
    why = str(error).partition("\n")[0].strip(".") or "MemoryError"
    gone = " mine was unloaded to free memory. No model is loaded now."
    assert str(refusal.value) == f"mine can't be loaded as float32: {why}.{helps}{gone}"


def test_an_encoder_decoder_model_is_refused_before_its_weights_are_read(copy, tmp_path):
    (copy / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    assert (
        refusal(host(tmp_path))
        == "mine is an encoder-decoder model; only causal language models can be trained here."
    )


def test_the_card_needs_no_weights(copy, tmp_path):
    (copy / "model.safetensors").unlink()
    card = host(tmp_path).card()
    assert (card.name, card.context, card.loading) == ("mine", 2048, "auto")
    assert card.tokenizer("Hello")["input_ids"]


KINDS = {
    "auto": torch.float32,
    "float32": torch.float32,
    "bfloat16": torch.bfloat16,
    "float16": torch.float16,
}


@pytest.mark.parametrize(("newer", "kind"), [(True, torch.bfloat16), (False, torch.float16)])
def test_on_cards_that_only_imitate_bfloat16_quantized_models_compute_in_float16(monkeypatch, newer, kind):
    """torch counts the imitation as support where it is not asked to leave it out; RTX 20, GTX 16 and 10, T4."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    major = SimpleNamespace(major=8 if newer else 7)
    monkeypatch.setattr(torch.cuda, "current_device", lambda: 0)
    monkeypatch.setattr(torch.cuda, "get_device_properties", lambda device: major)
    monkeypatch.setattr(torch.cuda, "_check_bf16_tensor_supported", lambda device: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    chosen = standalone._load_options("4bit")
    assert (chosen["dtype"], chosen["quantization_config"].bnb_4bit_compute_dtype) == (kind, kind)


@pytest.mark.parametrize("loading", KINDS)
def test_a_model_is_loaded_as_asked(copy, tmp_path, loading):
    model = host(tmp_path, loading=loading).loaded_model().model
    assert {weight.dtype for weight in model.parameters()} == {KINDS[loading]}
    assert not model.training


def test_four_bits_are_nf4_with_double_quantisation(copy, tmp_path):
    model = host(tmp_path, loading="4bit").loaded_model().model
    state = model.model.layers[0].mlp.down_proj.weight.quant_state
    assert (state.quant_type, state.nested) == ("nf4", True)
    assert model.is_loaded_in_4bit


def test_eight_bits(copy, tmp_path):
    model = host(tmp_path, loading="8bit").loaded_model().model
    assert model.model.layers[0].mlp.down_proj.weight.dtype == torch.int8
    assert model.is_loaded_in_8bit


def test_all_ways_of_loading_are_tested():
    assert set(LOADING_OPTIONS) == {*KINDS, "8bit", "4bit"}


def test_choosing_another_one_lets_the_first_go(copy, tiny, tmp_path):
    own = host(tmp_path)
    first = own.loaded_model().model
    own.select_model("mine", "auto")
    assert own.loaded_model().model is first
    own.select_model(str(tiny), "auto")
    assert own.card().name == "tiny"
    assert own.loaded_model().model is not first


def test_a_path_may_stand_in_the_quotes_that_the_explorer_of_windows_copies_it_in(copy, tmp_path):
    host = StandaloneHost(standalone_folders(tmp_path / "elsewhere"))
    host.load(f'"{copy}"', "auto")
    assert (host.model_status().model, host.selected_model[0]) == (copy.name, str(copy))


def test_loading_the_same_again_lets_the_first_go_before(copy, tmp_path, monkeypatch):
    own, seen = host(tmp_path), []
    own.load("mine", "auto")
    first, read = weakref.ref(own.loaded_model().model), standalone._load_weights
    monkeypatch.setattr(standalone, "_load_weights", lambda *how: seen.append(first()) or read(*how))
    own.load("mine", "auto")
    assert seen == [None]
    assert own.model_status().model == "mine"


@pytest.mark.parametrize("name", ["not-there", "../models/nowhere", "mine/model.safetensors/x"])
def test_a_name_that_is_no_models_is_refused_before_the_loaded_one_goes(copy, tmp_path, name):
    own = host(tmp_path)
    own.load("mine", "auto")
    before = own.loaded_model().model
    with pytest.raises(ModelError, match="There is no model"):
        own.load(name, "auto")
    assert (own.loaded_model().model, own.selected_model) == (before, ("mine", "auto"))


@pytest.mark.parametrize("other", ["mine", "broken"])
def test_where_the_second_cannot_be_loaded_it_is_said_what_became_of_the_first(copy, tmp_path, other):
    shutil.copytree(copy, copy.parent / "broken")
    own = host(tmp_path)
    own.load("mine", "auto")
    for name in {other, "broken"}:
        (copy.parent / name / "model.safetensors").write_bytes(b"x" * 100)
    with pytest.raises(ModelError) as refusal:
        own.load(other, "auto")
    assert str(refusal.value).endswith(" mine was unloaded to free memory. No model is loaded now.")
    assert own.model_status().problem.startswith("No model is loaded.")


def test_what_was_noted_is_lent(copy, tmp_path):
    own = host(tmp_path)
    base = own.loaded_model().model
    own.set_loras("a model with it on", ["a"])
    assert (own.loaded_model().model, own.loaded_model().loras) == ("a model with it on", ("a",))
    own.set_loras(base, ())
    assert (own.loaded_model().model, own.loaded_model().loras) == (base, ())


def test_the_working_folder_is_as_in_the_webui(tmp_path):
    found = standalone_folders(tmp_path)
    assert (found.models, found.loras, found.logs) == (tmp_path / "models", tmp_path / "loras", tmp_path / "logs")
    assert found.datasets == tmp_path / "training" / "datasets"
    assert (found.examples / "story.txt").is_file()


def test_loading_again_reads_the_files_of_the_model_again(copy, tmp_path):
    own = host(tmp_path)
    own.load("mine", "auto")
    config = copy / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 512}))
    assert own.card().context != 512
    own.load("mine", "auto")
    assert own.card().context == 512


def test_a_run_that_loads_its_model_again_keeps_the_card_that_it_began_with(copy, tmp_path):
    own = host(tmp_path)
    card = own.loaded_model().card
    own.unload()
    own.reload(card)
    assert own.loaded_model().card is card


def test_the_card_names_the_model_so_that_a_command_finds_it(copy, tmp_path, monkeypatch):
    (copy.parent / "nick").symlink_to(copy, target_is_directory=True)
    monkeypatch.chdir(tmp_path)
    elsewhere = shutil.copytree(copy, tmp_path / "elsewhere")
    for given, found in (("mine", "mine"), ("nick", "nick"), ("elsewhere", str(elsewhere))):
        own = host(tmp_path)
        own.select_model(given, "auto")
        assert own.card().given_name == found
