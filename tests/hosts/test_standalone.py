"""Our own host: which models there are, how they are loaded, and a sentence for each that cannot be."""

from __future__ import annotations

import json
import shutil
import weakref

import pytest
import torch
from training_pro.core.errors import ModelError
from training_pro.core.host import ModelCard
from training_pro.hosts import standalone
from training_pro.hosts.standalone import LOADING_OPTIONS, StandaloneHost, standalone_folders

KINDS = {"auto": torch.float32, "float32": torch.float32, "bfloat16": torch.bfloat16, "float16": torch.float16}
GONE = " mine was unloaded to free memory. No model is loaded now."


@pytest.fixture
def copy(tiny, tmp_path):
    """The tiny model in the models folder, to be broken."""
    return shutil.copytree(tiny, tmp_path / "user_data" / "models" / "mine")


@pytest.fixture
def host(tmp_path):
    return lambda model="mine", loading="auto": StandaloneHost(
        standalone_folders(tmp_path / "user_data"), model=model, loading=loading
    )


@pytest.fixture
def own(copy, host):
    """A host that has loaded the model."""
    made = host()
    made.load("mine", "auto")
    return made


def refusal(call, *words):
    with pytest.raises(ModelError) as error:
        call(*words)
    assert "\n" not in str(error.value)
    return str(error.value)


def test_models_are_folders_with_a_config_and_gguf_files(copy, host, tmp_path):
    for name in ("empty", "quants"):
        (copy.parent / name).mkdir()
    assert "press Load model, or name it with --model. Available: mine." in refusal(host("").card)
    said = refusal(host("other").card)
    assert said.startswith(f"There is no model 'other' in {copy.parent}") and said.endswith("Available: mine.")
    assert "There is no model" in refusal(host(str(copy.parent / "empty")).card)
    (copy.parent / "publisher" / "repository").mkdir(parents=True)
    deep = "publisher/repository/q8.gguf"
    for name in ("Alone.gguf", "quants/q4.gguf", "quants/mmproj-F16.gguf", deep):
        (copy.parent / name).write_bytes(b"GGUF")
    assert host().models() == ["Alone.gguf", "mine", deep, "quants/q4.gguf"]


@pytest.mark.parametrize("text", ["{broken", "{}", "[1]", '{"model_type": "newfangled"}', "a tokenizer"])
def test_a_broken_config_or_tokenizer_is_one_sentence(copy, host, text):
    (copy / ("tokenizer.json" if text == "a tokenizer" else "config.json")).write_text(text, encoding="utf-8")
    said = refusal(host().card)
    assert said.startswith(f"{copy} can't be read as a model: ")
    assert said.endswith(". Download it again, or choose another one.")


def test_the_card_needs_no_weights_and_missing_or_broken_weights_are_one_sentence(copy, host):
    (copy / "model.safetensors").unlink()
    card = host().card()
    assert (card.name, card.context, card.loading) == ("mine", 2048, "auto") and card.tokenizer("Hello")[
        "input_ids"
    ]
    assert refusal(host().loaded_model).startswith("mine can't be loaded as auto: ")
    (copy / "model.safetensors").write_bytes(b"x" * 100)
    assert refusal(host().loaded_model).startswith("mine can't be loaded as auto: ")
    (copy / "config.json").write_text(json.dumps({"model_type": "t5", "is_encoder_decoder": True}))
    assert refusal(host().card).startswith("mine is an encoder-decoder model; only causal language models")


@pytest.mark.parametrize("loading", LOADING_OPTIONS)
def test_a_model_is_loaded_as_asked(copy, host, loading):
    model = host(loading=loading).loaded_model().model
    layer = model.model.layers[0].mlp.down_proj.weight
    assert not model.training
    if loading == "8bit":
        assert layer.dtype == torch.int8 and model.is_loaded_in_8bit
    elif loading == "4bit":
        assert (layer.quant_state.quant_type, layer.quant_state.nested) == ("nf4", True)
    else:
        assert {weight.dtype for weight in model.parameters()} == {KINDS[loading]}


@pytest.mark.parametrize(("real", "kind"), [(True, torch.bfloat16), (False, torch.float16)])
def test_on_cards_that_only_imitate_bfloat16_models_compute_in_float16(monkeypatch, real, kind):
    """torch counts the imitation as support where it is not asked to leave it out; RTX 20, GTX 16 and 10, T4."""
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "set_device", lambda device: None)
    monkeypatch.setattr(
        torch.cuda, "is_bf16_supported", lambda including_emulation=True: including_emulation or real
    )
    chosen = standalone._load_options("4bit")
    assert (chosen["dtype"], chosen["quantization_config"].bnb_4bit_compute_dtype) == (kind, kind)
    assert standalone._load_options("auto", is_gguf=True)["dtype"] == kind


def test_weights_that_are_quantized_already_count_as_such():
    card = ModelCard("a", {"quantization_config": {"load_in_4bit": True}, "dtype": "bfloat16"}, None, "auto")
    assert card.weight_precision(on_card=True) == "4bit"


def test_loading_another_one_lets_the_first_go_and_reads_its_files_again(own, copy, tiny):
    first = weakref.ref(own.loaded_model().model)
    config = copy / "config.json"
    config.write_text(json.dumps({**json.loads(config.read_text()), "max_position_embeddings": 512}))
    assert own.card().context != 512
    own.load("mine", "auto")
    assert own.card().context == 512 and own.loaded_model().model is not first()
    shutil.copytree(tiny, copy.parent / "tiny")
    own.load("tiny", "auto")
    assert own.card().name == "tiny"


@pytest.mark.parametrize("other", ["mine", "broken"])
def test_where_the_second_cannot_be_loaded_it_is_said_what_became_of_the_first(own, copy, other):
    shutil.copytree(copy, copy.parent / "broken")
    (copy.parent / other / "model.safetensors").write_bytes(b"x" * 100)
    assert refusal(own.load, other, "auto").endswith(GONE)
    assert own.model_status().problem.startswith("No model is loaded.")
