"""Expected size of a LoRA: by arithmetic where that is exact, else counted on the meta device."""

from __future__ import annotations

import json
import shutil
import warnings
from dataclasses import replace

import pytest
import torch
import transformers
from peft import LoraConfig, get_peft_model
from safetensors.torch import load_file
from training_pro.core.model_shape import ModelShape
from training_pro.engine.lora import inject_lora, lora_config, meta_model
from training_pro.engine.lora.targets import resolve_targets
from training_pro.engine.peft_engine import PeftEngine
from training_pro.hosts.standalone import StandaloneHost
from training_pro.interface.train import summary
from training_pro.settings.definitions import LoraSettings
from training_pro.settings.target_layers import KNOWN_MODEL_TYPES, is_known_architecture, target_layers
from training_pro.tests.engine.architectures import CONFIGS
from transformers.models.auto.configuration_auto import CONFIG_MAPPING

LLAMA_LIKE = {**CONFIGS["llama"][1], "vocab_size": 512}
EXPERTS = {"num_experts_per_tok": 2, "moe_intermediate_size": 16}
MLA = {
    "num_key_value_heads": 4,
    "kv_lora_rank": 8,
    "q_lora_rank": 12,
    "qk_rope_head_dim": 4,
    "qk_nope_head_dim": 8,
    "v_head_dim": 8,
    "n_routed_experts": 4,
    "n_shared_experts": 1,
    "first_k_dense_replace": 1,
    "n_group": 1,
    "topk_group": 1,
    **EXPERTS,
}
LINEAR = {"linear_num_key_heads": 2, "linear_num_value_heads": 4, "linear_key_head_dim": 8}
LINEAR |= {"linear_value_head_dim": 8, "head_dim": 8, "layer_types": ["linear_attention", "full_attention"]}
UNKNOWN = {
    "deepseek_v2": MLA,
    "deepseek_v3": MLA,
    "qwen3_next": {**LINEAR, "num_experts": 4, "shared_expert_intermediate_size": 16, **EXPERTS},
    "minimax": {"head_dim": 8, "num_local_experts": 4, "layer_types": ["linear_attention", "full_attention"]},
    "phi3": {},
}


def save_config(place, kind, **more):
    """Save config and tokenizer of a model, without weights."""
    config = CONFIG_MAPPING[kind](**{**LLAMA_LIKE, **UNKNOWN.get(kind, {}), **more})
    config.architectures = ["SomeForCausalLM"]
    folder = place.folders.models / kind
    config.save_pretrained(folder)
    for file in place.tiny.glob("tokenizer*"):
        shutil.copy(file, folder)
    return config, StandaloneHost(place.folders, model=str(folder))


def check(place, host, **more):
    return PeftEngine().check(place.settings(**more), host)


def peft_count(base, targets, rank):
    """Count trained parameters with PEFT alone."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        model = get_peft_model(base, LoraConfig(task_type="CAUSAL_LM", r=rank, target_modules=targets))
    return sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)


@pytest.mark.parametrize("kind", UNKNOWN)
def test_what_arithmetic_does_not_cover_is_counted_as_peft_does(place, kind):
    config, host = save_config(place, kind)
    base = transformers.AutoModelForCausalLM.from_config(config)
    weights = sum(parameter.numel() for parameter in base.parameters())
    trained = peft_count(base, "all-linear", 24)
    report = check(place, host, rank=24)
    assert ModelShape.of(host.card().config).lora_weights(24) != trained
    assert report.disk.made == report.memory.lora == report.memory.gradients == 4 * trained
    assert "(LoRA " in report.disk.words() and "LoRA about" not in report.disk.words()
    assert check(place, host, method="full", learning_rate=1e-3).disk.made == 4 * weights


def test_the_size_in_check_is_the_size_on_disk(place):
    config, host = save_config(place, "deepseek_v2")
    transformers.AutoModelForCausalLM.from_config(config).save_pretrained(place.folders.models / "deepseek_v2")
    for targets in ("all-linear", ["kv_a_proj_with_mqa", "o_proj"], ["model.layers.1.self_attn.o_proj"]):
        disk = check(place, host, targets=targets).disk
        place.train(host, targets=targets, max_steps=1, if_exists="replace")
        tensors = load_file(place.lora() / "adapter_model.safetensors").values()
        assert (disk.made, disk.exact) == (4 * sum(weight.numel() for weight in tensors), True)


@pytest.mark.parametrize("kind", sorted(KNOWN_MODEL_TYPES))
def test_arithmetic_is_exact_for_known_architectures(kind):
    """With the default widths of each config, on the meta device."""
    if kind not in CONFIG_MAPPING:
        pytest.skip("this transformers does not know it")
    config = CONFIG_MAPPING[kind](num_hidden_layers=4)
    shape = ModelShape.of(config.to_dict())
    assert is_known_architecture(config.to_dict(), "all-linear")
    with torch.device("meta"):
        base = transformers.AutoModelForCausalLM.from_config(config)
    for targets in ("all-linear", "q-k-v-o"):
        lora = LoraSettings(rank=1, targets=targets)
        with (
            torch.device("meta"),
            inject_lora(base, lora_config(lora, base, resolve_targets(targets, base))) as model,
        ):
            trained = sum(parameter.numel() for parameter in model.parameters() if parameter.requires_grad)
        assert shape.lora_weights(1, target_layers(targets)) == trained
    weights = sum(parameter.numel() for parameter in base.parameters())
    assert shape.linear_weights + shape.other_weights == pytest.approx(weights, rel=0.01)


def test_no_meta_model_is_built_where_arithmetic_suffices(place, monkeypatch):
    monkeypatch.setattr(meta_model, "build_meta_model", lambda card: pytest.fail("not needed"))
    assert check(place, place.host()).disk.exact


def test_without_a_meta_model_the_size_is_an_estimate_and_nothing_is_refused_for_it(place):
    host = place.host()
    card = replace(host.card(), config={**host.card().config, "model_type": "of_tomorrow"})
    host.card = lambda: card
    disk = check(place, host).disk
    assert "(LoRA about " in disk.words() and not disk.exact
    assert not [finding for finding in replace(disk, free=0).findings() if finding.level == "problem"]


@pytest.mark.parametrize("error", [AssertionError(), ImportError("timm"), KeyError("x")])
def test_a_models_code_that_fails_does_not_end_a_check(place, monkeypatch, error):
    def failing(card):
        raise error

    monkeypatch.setattr(meta_model, "build_meta_model", failing)
    _, host = save_config(place, "phi3")
    assert "LoRA about " in check(place, host).disk.words()


def test_a_layer_with_an_unknown_name_is_not_covered_by_arithmetic():
    assert is_known_architecture({"model_type": "llama"}, ("q_proj", "down_proj"))
    assert not is_known_architecture({"model_type": "llama"}, ("model.layers.1.self_attn.q_proj",))
    assert not is_known_architecture({"model_type": "llama"}, ("special",))
    assert is_known_architecture({"model_type": "gemma3", "text_config": {"model_type": "gemma3_text"}}, "q-v")


def test_the_form_names_a_size_where_it_is_known_and_else_refers_to_check(place):
    values = {"rank": 4, "alpha": 8, "rslora": False, "targets": "all-linear"}
    config = json.loads((place.tiny / "config.json").read_text(encoding="utf-8"))
    assert "file size about " in summary.lora_summary(values, config)
    assert summary.lora_summary(values, {**config, "model_type": "phi3"}).endswith("; Check shows its file size.")
    assert summary.lora_summary(values, {}).endswith("scaling 2.")
