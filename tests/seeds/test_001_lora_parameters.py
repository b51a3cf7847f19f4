"""The novice's training guide on LoraConfig and target modules: each parameter, in a run and in PEFT's file."""

from __future__ import annotations

import json

import pytest
from safetensors.torch import load_file
from training_pro.core.errors import SettingsError
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.settings import other_names
from training_pro.settings.definitions import SETTINGS
from training_pro.settings.parsing import training_settings
from training_pro.tests.coming_from import read_page
from training_pro.tests.engine import architectures
from training_pro.tests.engine.architectures import save_model

OLDER_MODELS = {
    "gptj": ("GPTJConfig", {"n_embd": 32, "n_layer": 2, "n_head": 4, "n_positions": 256, "rotary_dim": 4}),
    "mpt": ("MptConfig", {"d_model": 32, "n_layers": 2, "n_heads": 4, "max_seq_len": 256, "expansion_ratio": 2}),
}
GUIDE_MODULES = "up_proj,down_proj,q_proj,v_proj,k_proj,o_proj,embed_tokens,lm_head"


def trained(place, model="llama", **more):
    """Train one step; return PEFT's config and weights."""
    host = StandaloneHost(place.folders, model=str(save_model(place, model, tied=False)))
    place.train(host, max_steps=1, **more)
    weights = load_file(place.lora() / "adapter_model.safetensors")
    return json.loads((place.lora() / "adapter_config.json").read_text()), weights


def test_r_the_rank_of_the_update_matrices(place):
    config, weights = trained(place, rank=3, targets="q-v")
    assert config["r"] == 3
    assert {weight.shape[0] for name, weight in weights.items() if "lora_A" in name} == {3}


def test_lower_rank_results_in_smaller_update_matrices(place):
    sizes = [PeftEngine().check(place.settings(rank=rank), place.host()).disk.made for rank in (2, 8, 32)]
    assert sizes == [sizes[0], 4 * sizes[0], 16 * sizes[0]]


def test_alpha_the_scaling_factor(place):
    assert trained(place, rank=4, alpha=16)[0]["lora_alpha"] == 16
    assert training_settings({"name": "a", "data": ["a.txt"], "rank": 128, "alpha": 256}).lora.strength == 2


def test_target_modules_as_the_guide_lists_them(place):
    _, weights = trained(place, targets=GUIDE_MODULES)
    for name in GUIDE_MODULES.split(","):
        assert any(f".{name}.lora_" in key for key in weights), name
    assert not any("gate_proj" in key for key in weights)


BIASES = {"none": set(), "all": {"q_proj", "k_proj"}, "lora_only": {"q_proj"}}


@pytest.mark.parametrize(("bias", "expected"), BIASES.items())
def test_bias_none_all_or_lora_only(place, bias, expected):
    config, weights = trained(place, "qwen2", bias=bias, targets=["q_proj"])
    biases = {key for key in weights if key.endswith("bias")}
    assert config["bias"] == bias
    assert {name for name in ("q_proj", "k_proj") if any(f".{name}." in key for key in biases)} == expected


def test_bias_is_not_applicable_to_llama_models(place):
    advice = PeftEngine().check(place.settings(bias="all"), place.host()).advice
    assert "Bias all: this model has no biases, so this setting has no effect. Set Bias to none." in advice


def test_modules_to_save_are_trainable_and_saved(place):
    config, weights = trained(place, modules_to_save=["norm", "lm_head"], targets="q-v")
    assert set(config["modules_to_save"]) == {"model.norm", "lm_head"}
    assert {"base_model.model.model.norm.weight", "base_model.model.lm_head.weight"} <= weights.keys()


def test_layers_to_transform_and_without_it_all_layers(place):
    for value, layers in (("", {"0", "1"}), ("1", {"1"})):
        _, weights = trained(place, layers_to_transform=value, if_exists="replace")
        assert {key.split(".layers.")[1][0] for key in weights} == layers


@pytest.mark.parametrize(
    ("model", "pattern"),
    [
        ("llama", "model.layers"), ("gpt2", "transformer.h"), ("gpt_neox", "gpt_neox.layers"),
        ("gptj", "transformer.h"), ("mpt", "transformer.blocks"),
    ],
)  # fmt: skip
def test_common_layer_patterns_are_found_without_layers_pattern(place, monkeypatch, model, pattern):
    """layers, h and blocks: LLaMA 7B, GPT-J 6B and Pythia, which the guide recommends, are among the models."""
    for name, config in OLDER_MODELS.items():
        monkeypatch.setitem(architectures.OTHERS, name, config)
    _, weights = trained(place, model, layers_to_transform="0")
    assert {key.partition(f".{pattern}.")[2].split(".")[0] for key in weights} == {"0"}


@pytest.mark.parametrize("rank", [1, 4, 7])
def test_a_rank_below_8_is_allowed_without_advice(place, rank):
    report = PeftEngine().check(place.settings(rank=rank, alpha=rank, learning_rate=1e-4), place.host())
    assert (report.problems, report.advice) == ((), ())
    assert "Lower ranks are allowed" in read_page("rank of at least 8")


def test_higher_ranks_have_higher_compute_requirements(place):
    low, high = (PeftEngine().check(place.settings(rank=rank), place.host()).memory for rank in (8, 64))
    assert high.total > low.total and high.optimizer == 8 * low.optimizer


@pytest.mark.parametrize(
    ("key", "answer"),
    [
        (
            "layers_pattern",
            "This is not needed, because Layers to transform finds the numbered layers of any model.",
        ),
        ("lora_target_modules", "In Training PRO, it is called 'targets'."),
        ("lora_rank", "In Training PRO, it is called 'rank'."),
        ("lora_alpha", "In Training PRO, it is called 'alpha'."),
    ],
)
def test_the_names_of_the_guide_are_answered(key, answer):
    with pytest.raises(SettingsError) as refused:
        training_settings({"name": "a", "data": ["a.txt"], key: "1"})
    assert answer in str(refused.value)


def test_custom_syntax_leads_to_the_embeddings_and_the_output_layer():
    (found, *_) = other_names.find_settings("custom syntax")
    assert found.key == "targets"
    assert all(name in SETTINGS["targets"].help for name in ("embed_tokens", "lm_head", "syntax"))
